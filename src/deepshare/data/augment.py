"""Augmentation as a pure function of a batch and given random numbers."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.data.colour import Jitter
from deepshare.errors import DataError

# Random numbers per image: crop y, crop x, flip, brightness, contrast, saturation, hue, scale.
DRAWS = 8


class Transform(Protocol):
    """Turns uint8 images, with masks if there are any, into floats from 0 to 1."""

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch.

        Args:
            images: uint8 of shape (B, C, H, W).
            masks: uint8 of shape (B, H, W), or None.
            draws: Uniform random numbers from 0 to 1, of shape (B, DRAWS).
            ignore: Mask label outside of the image.
        """
        ...


@dataclass(frozen=True)
class Augment:
    """Augmentation for classification: random crop of the padded image, flip, colour jitter.

    Attributes:
        crop_padding: Black pixels added on each side before a random crop of the original size.
        flip: Flip half of the images horizontally.
        jitter: Colour jitter.
    """

    crop_padding: int = 0
    flip: bool = False
    jitter: Jitter | None = None

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch; see `Transform`."""
        if self.crop_padding or self.flip:
            if masks is not None:
                raise DataError("Augment is for classification: SceneAugment moves a mask together with its image")
            images = _crop_and_flip(images, self.crop_padding, draws, self.flip)
        images = images.float().div_(255)
        if self.jitter:
            images = self.jitter(images, draws[:, 3:7])
        return images, masks


def _crop_and_flip(images: Tensor, pad: int, draws: Tensor, flip: bool) -> Tensor:
    """Crop and flip each padded image by its own random numbers, in one gather.

    0.3 ms for 128 CIFAR images. kornia's RandomCrop and RandomHorizontalFlip take 3 to 12 ms and draw from the global
    random state, so an epoch could not be resumed in the middle.
    """
    batch, channels, height, width = images.shape
    start = (draws[:, :2] * (2 * pad + 1)).long()
    rows = start[:, :1] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(batch, -1)
    if flip:
        columns = torch.where(draws[:, 2:3] < 0.5, columns, width - 1 - columns)
    columns = columns + start[:, 1:]
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, places.view(batch, 1, -1).expand(-1, channels, -1)).view_as(images)
