"""Labelled images in memory or on disk, and the ways to take a part of them."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.errors import DataError

SCALED_AT_ONCE = 4096  # images, as numbers take four times the memory of pixels


@dataclass(frozen=True)
class FileImages:
    """Images that are read when they are asked for, because they are too many or of unequal size."""

    paths: tuple[Path, ...]
    decode: Callable[[Path], Tensor]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.decode(self.paths[index])

    def take(self, indices: Tensor) -> "FileImages":
        """Return the images at some places, still unread."""
        return replace(self, paths=tuple(self.paths[index] for index in indices.tolist()))


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with one label each (classification) or one mask each (segmentation).

    Attributes:
        name: What messages call it.
        images: uint8 of shape (N, C, H, W), or files that give uint8 of shape (C, H, W).
        labels: int64 of shape (N,); or masks, uint8 of shape (N, H, W), or files that give uint8 of shape (H, W).
        classes: The classes' names; label i is the i-th.
        mean: The mean of each channel, on the scale 0 to 1.
        std: The standard deviation of each channel, on the same scale.
        ignore: The label that is no class and counts nowhere.
    """

    name: str
    images: Tensor | FileImages
    labels: Tensor | FileImages
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    ignore: int | None = None

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{self.name}: {len(self.images)} images but {len(self.labels)} labels")
        if self.segmentation and self.ignore is None:
            raise DataError(f"{self.name}: masks need an ignore label, for where there is no image")
        if isinstance(self.images, Tensor):
            self._check_images(self.images)
        if isinstance(self.labels, Tensor):
            check_labels(self.labels, len(self.classes), self.ignore, self.name)

    def _check_images(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != len(self.mean):
            found = f"{images.dtype} of shape {tuple(images.shape)}"
            raise DataError(f"{self.name}: images must be uint8 of shape (N, {len(self.mean)}, H, W), not {found}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def segmentation(self) -> bool:
        """Whether each image has a mask rather than one label."""
        return isinstance(self.labels, FileImages) or self.labels.ndim == 3

    def checksum(self) -> str:
        """What tells these images and labels from others, as 16 digits; of files their names and sizes."""
        found = hashlib.sha256()
        for part in (self.images, self.labels):
            if isinstance(part, Tensor):
                found.update(str(tuple(part.shape)).encode())
                found.update(part.contiguous().cpu().numpy().data)
            else:
                found.update("".join(f"{path.name} {_size(path)} " for path in part.paths).encode())
        return found.hexdigest()[:16]

    def take(self, indices: Tensor) -> "ImageSet":
        """Return the images at some places, in that order."""
        return replace(self, images=_take(self.images, indices), labels=_take(self.labels, indices))


@dataclass(frozen=True)
class Splits:
    """A data set in its three parts; the test part is for the final figure alone."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def resized(whole: ImageSet, size: tuple[int, int]) -> ImageSet:
    """Scale the images of a set in memory to a height and a width, smoothed before they shrink."""
    if not isinstance(whole.images, Tensor) or whole.images.shape[2:] == size or not len(whole):
        return whole
    scaled = [
        F.interpolate(part.float(), size, mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
        for part in whole.images.split(SCALED_AT_ONCE)
    ]
    return replace(whole, images=torch.cat(scaled))


def check_labels(labels: Tensor, classes: int, ignore: int | None, name: str) -> None:
    """Raise a `DataError` unless every label is a class or to be ignored."""
    wrong = (labels < 0) | (labels >= classes)
    if ignore is not None:
        wrong &= labels != ignore
    if wrong.any():
        first = labels[wrong][0].item()
        raise DataError(
            f"{name}: label {first} is out of range: with {classes} classes labels go from 0 to {classes - 1}"
        )


def check_classes(name: str, classes: int, outputs: int) -> None:
    """Raise a `DataError` unless the model has one output per class."""
    if classes != outputs:
        raise DataError(
            f"{name} has {classes} classes but the model has {outputs} outputs: build it with classes={classes}, "
            f"or train with --model.num_classes {classes}"
        )


def cut(whole: ImageSet, size: int | float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Cut a part off, drawn from every class in its proportion; the same for the same seed.

    Args:
        whole: What to cut.
        size: The part's share (a float below 1) or its number of images (an int).
        seed: Of the draw.

    Returns:
        The rest and the part, both in the order of the whole.
    """
    count = math.floor(size * len(whole) + 0.5) if isinstance(size, float) else size
    if not 0 <= count <= len(whole) or (isinstance(size, float) and size >= 1):
        raise DataError(
            f"{whole.name}: cannot take {size} of {len(whole)} images: let data.validation or data.subset be less"
        )
    order = _balanced_order(whole, seed)
    return whole.take(order[count:].sort().values), whole.take(order[:count].sort().values)


def _balanced_order(image_set: ImageSet, seed: int) -> Tensor:
    """Return a random order whose every beginning holds the classes in their proportion."""
    order = torch.randperm(len(image_set), generator=torch.Generator().manual_seed(seed))
    if image_set.segmentation or not isinstance(image_set.labels, Tensor):
        return order
    labels = image_set.labels[order]
    counts = torch.bincount(labels, minlength=len(image_set.classes))
    by_class = labels.argsort(stable=True)
    place = torch.empty_like(labels)
    place[by_class] = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]
    return order[((place + 0.5) / counts[labels]).argsort(stable=True)]


def _take(images: Tensor | FileImages, indices: Tensor) -> Tensor | FileImages:
    return images[indices] if isinstance(images, Tensor) else images.take(indices)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: get the data set again") from None
