"""Image and mask together: scaled, cropped and mirrored in one warp."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from kornia.geometry.transform import warp_affine
from torch import Tensor

from deepshare.data.colour import Jitter


@dataclass(frozen=True)
class SceneAugment:
    """Augmentation for segmentation: random scale, crop to a fixed size, flip, colour jitter.

    Attributes:
        crop: Height and width of what is cut out; where the image ends, the mask says ignore.
        scale: The least and the greatest scale.
        flip: Whether every other image is mirrored.
        jitter: By how much colours change at most.
    """

    crop: tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    flip: bool = True
    jitter: Jitter | None = None

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch, see `Transform`."""
        least, greatest = self.scale
        scale = least + (greatest - least) * draws[:, 7]
        mirrored = (draws[:, 2] >= 0.5) & self.flip
        images = images.float().div_(255)
        if self.jitter:
            images = self.jitter(images, draws[:, 3:7])
        return _warp(images, masks, scale, draws[:, :2], mirrored, self.crop, ignore)


@dataclass(frozen=True)
class Fit:
    """The whole image in a frame of fixed size, as large as it goes, in the middle; for evaluation.

    Attributes:
        size: Height and width of the frame; where the image ends, the mask says ignore.
    """

    size: tuple[int, int]

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch, see `Transform`; nothing here is random."""
        height, width = images.shape[2:]
        scale = draws.new_full((len(images),), self._scale(height, width))
        middle = torch.full_like(draws[:, :2], 0.5)
        mirrored = torch.zeros_like(scale, dtype=torch.bool)
        return _warp(images.float().div_(255), masks, scale, middle, mirrored, self.size, ignore)

    def undo(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Scale maps of the frame, such as logits, back to images that had a size; the rest of the frame is dropped."""
        scale = self._scale(*size)
        rows, columns = (
            _positions(old, scale * old / new, 1 / new).to(maps) for old, new in zip(size, self.size, strict=True)
        )
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1).expand(len(maps), -1, -1, -1)
        return F.grid_sample(maps, grid, padding_mode="border", align_corners=False)

    def _scale(self, height: int, width: int) -> float:
        return min(self.size[0] / height, self.size[1] / width)


def _positions(count: int, end: float, half: float) -> Tensor:
    """Where an image's pixels are in a frame that goes from -1 to 1 and has the image from -end to end.

    Those of the rim are moved in by what lacks to half a pixel of the frame, lest they read what is beside the image.
    """
    positions = end * (2 * torch.arange(count, dtype=torch.float64) + 1 - count) / count
    inside = max(0.0, end - half)
    return positions.clamp(-inside, inside)


def _warp(
    images: Tensor,
    masks: Tensor | None,
    scale: Tensor,
    place: Tensor,
    mirrored: Tensor,
    size: tuple[int, int],
    ignore: int,
) -> tuple[Tensor, Tensor | None]:
    """Scale every image and cut `size` out of it; a place of 0 is its upper left end, of 1 its lower right."""
    old = torch.tensor(images.shape[2:], device=images.device)
    new = torch.tensor(size, device=images.device)
    start = place * (scale[:, None] * old - new)
    # Half a pixel each way, because a pixel's position is that of its middle: new + 1/2 = scale * (old + 1/2) - start.
    shift = 0.5 * scale[:, None] - 0.5 - start
    sign = 1 - 2 * mirrored.to(scale.dtype)
    matrix = scale.new_zeros(len(images), 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = sign * scale, scale
    matrix[:, 0, 2] = torch.where(mirrored, size[1] - 1 - shift[:, 1], shift[:, 1])
    matrix[:, 1, 2] = shift[:, 0]
    warped = warp_affine(images, matrix, size)
    if masks is None:
        return warped, None
    # Outside the image a warp gives 0: let 0 stand for what is ignored while it runs.
    coded = masks[:, None].float() - ignore
    labels = warp_affine(coded, matrix, size, mode="nearest").add_(ignore).round_().squeeze(1)
    return warped, labels.to(masks.dtype)
