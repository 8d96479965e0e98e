"""Images of any size, seen by a network whose input has one size, and judged at the size of their own masks."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.data import Fit, ImageSet, Source, Transform
from deepshare.data.pictures import Size, height_and_width
from deepshare.errors import DataError

Evaluation = Literal["whole", "sliding"]
STEP = 2 / 3  # of the input, from one crop to the next; usual for ADE20K


class View(Transform, Protocol):
    """Prepares images and leaves their masks as they are; gives logits at the size of those masks."""

    def logits(self, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Tensor:
        """Run a network on prepared images whose masks have a size."""
        ...


@dataclass(frozen=True)
class Whole:
    """The whole image fitted into the network's input; logits scaled back.

    Attributes:
        size: Height and width of the input.
    """

    size: tuple[int, int]

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch, see `Transform`."""
        return Fit(self.size)(images, None, draws, ignore)[0], masks

    def logits(self, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Tensor:
        """See `View`."""
        return Fit(self.size).undo(model(images), size)


@dataclass(frozen=True)
class Sliding:
    """The image scaled until it just covers the network's input, then crop after crop; where they overlap, the mean.

    Attributes:
        size: Height and width of the input. If it is a square, the shorter side of the image gets this length.
    """

    size: tuple[int, int]

    def __call__(
        self, images: Tensor, masks: Tensor | None, draws: Tensor, ignore: int
    ) -> tuple[Tensor, Tensor | None]:
        """Transform a batch, see `Transform`."""
        height, width = images.shape[2:]
        scale = max(self.size[0] / height, self.size[1] / width)
        size = max(self.size[0], round(scale * height)), max(self.size[1], round(scale * width))
        return _resize(images.float().div_(255), size, antialias=True), masks

    def logits(self, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Tensor:
        """See `View`."""
        rows, columns = (starts(whole, part) for whole, part in zip(images.shape[2:], self.size, strict=True))
        places = [
            (..., slice(top, top + self.size[0]), slice(left, left + self.size[1]))
            for top, left in product(rows, columns)
        ]
        said = [model(images[place]) for place in places]
        total = said[0].new_zeros(*said[0].shape[:2], *images.shape[2:])
        crops = total.new_zeros(images.shape[2:])
        for place, logits in zip(places, said, strict=True):
            total[place] += logits
            crops[place] += 1
        return _resize(total / crops, size)


def starts(whole: int, part: int) -> list[int]:
    """Where crops begin that are evenly spaced, the last pulled back to the end.

    >>> starts(512, 512), starts(683, 512)
    ([0], [0, 171])
    """
    step = max(1, int(STEP * part))
    count = math.ceil((whole - part) / step) + 1
    return [min(number * step, whole - part) for number in range(count)]


def make_view(evaluation: Evaluation | None, image_size: Size | None, source: Source) -> View | None:
    """The view of a set that a recipe or a flag names; None: image and mask are both fitted into the input.

    Raises:
        DataError: The images have no masks, or come from the user as the network takes them.
    """
    if evaluation is None:
        return None
    if not isinstance(source, ImageSet) or not source.segmentation:
        raise DataError(f'{source.name}: evaluation "{evaluation}" is for data sets with a mask for each image')
    if image_size is None:
        raise DataError(f'{source.name}: evaluation "{evaluation}" needs an image size, the network\'s input')
    size = height_and_width(image_size)
    return Whole(size) if evaluation == "whole" else Sliding(size)


def _resize(maps: Tensor, size: tuple[int, int], antialias: bool = False) -> Tensor:
    if maps.shape[2:] == torch.Size(size):
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=False, antialias=antialias)
