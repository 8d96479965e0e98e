"""Augmentation for segmentation: image and mask scaled, cropped and flipped in one warp."""

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
        crop: Height and width of the crop; outside of the image the mask is ignored.
        scale: Minimum and maximum scale.
        flip: Flip half of the images horizontally.
        jitter: Colour jitter.
    """

    crop: tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    flip: bool = True
    jitter: Jitter | None = None

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch; see `Transform`."""
        least, greatest = self.scale
        scale = least + (greatest - least) * draws[:, 7]
        mirrored = (draws[:, 2] >= 0.5) & self.flip
        images = images.float().div_(255)
        if self.jitter:
            images = self.jitter(images, draws[:, 3:7])
        return _warp(images, masks, scale, draws[:, :2], mirrored, self.crop, ignore)


@dataclass(frozen=True)
class Fit:
    """Resize the whole image to fit into a frame, centred; for evaluation.

    Attributes:
        size: Height and width of the frame; outside of the image the mask is ignored.
    """

    size: tuple[int, int]

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch without randomness; see `Transform`."""
        height, width = images.shape[2:]
        scale = draws.new_full((len(images),), self._scale(height, width))
        middle = torch.full_like(draws[:, :2], 0.5)
        mirrored = torch.zeros_like(scale, dtype=torch.bool)
        return _warp(images.float().div_(255), masks, scale, middle, mirrored, self.size, ignore)

    def undo(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Resize maps of the frame, such as logits, back to the size of the images; drop the rest of the frame."""
        scale = self._scale(*size)
        rows, columns = (
            _positions(old, scale * old / new, 1 / new).to(maps) for old, new in zip(size, self.size, strict=True)
        )
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1).expand(len(maps), -1, -1, -1)
        return F.grid_sample(maps, grid, padding_mode="border", align_corners=False)

    def _scale(self, height: int, width: int) -> float:
        return min(self.size[0] / height, self.size[1] / width)


def _positions(count: int, end: float, half: float) -> Tensor:
    """Positions of an image's pixels in a frame from -1 to 1 with the image from -end to end.

    Pixels at the border are moved inwards, to at least half a pixel of the frame, so that they do not read beyond the
    image.
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
    """Scale every image and crop it to `size`; place 0 is the upper left, 1 the lower right."""
    old = torch.tensor(images.shape[2:], device=images.device)
    new = torch.tensor(size, device=images.device)
    start = place * (scale[:, None] * old - new)
    # Pixel positions are centres: new + 1/2 = scale * (old + 1/2) - start.
    shift = 0.5 * scale[:, None] - 0.5 - start
    sign = 1 - 2 * mirrored.to(scale.dtype)
    matrix = scale.new_zeros(len(images), 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = sign * scale, scale
    matrix[:, 0, 2] = torch.where(mirrored, size[1] - 1 - shift[:, 1], shift[:, 1])
    matrix[:, 1, 2] = shift[:, 0]
    warped = warp_affine(images, matrix, size)
    if masks is None:
        return warped, None
    # A warp gives 0 outside of the image: let 0 be the ignored label while it runs.
    coded = masks[:, None].float() - ignore
    labels = warp_affine(coded, matrix, size, mode="nearest").add_(ignore).round_().squeeze(1)
    return warped, labels.to(masks.dtype)
