"""Labelled images, in memory or on disk, their splits, and their format for those who have no data set."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ImageOps
from pydantic import BaseModel, ConfigDict, PositiveFloat, model_validator
from torch import Tensor

from deepshare.data.pictures import opened
from deepshare.errors import DataError

SCALED_AT_ONCE = 4096  # images, as numbers take four times the memory of pixels

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Size = int | tuple[int, int]  # side of a square, or height and width


def height_and_width(size: Size) -> tuple[int, int]:
    """Expand a size to height and width.

    >>> height_and_width(32), height_and_width((180, 240))
    ((32, 32), (180, 240))
    """
    return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True)
class FileImages:
    """Images read on demand, because they are too many or of unequal size."""

    paths: tuple[Path, ...]
    decode: Callable[[Path], Tensor]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.decode(self.paths[index])

    def take(self, indices: Tensor) -> "FileImages":
        """Select images by index without reading them."""
        return replace(self, paths=tuple(self.paths[index] for index in indices.tolist()))


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with one label each (classification) or one mask each (segmentation).

    Attributes:
        name: Name in messages.
        images: uint8 of shape (N, C, H, W), or files decoded to uint8 of shape (C, H, W).
        labels: int64 of shape (N,); or masks, uint8 of shape (N, H, W), or files decoded to uint8 of shape (H, W).
        classes: Class names, in the order of the labels.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel, on the same scale.
        ignore: Label to ignore.
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
        """True if each image has a mask instead of one label."""
        return isinstance(self.labels, FileImages) or self.labels.ndim == 3

    def checksum(self) -> str:
        """Fingerprint of images and labels as 16 hex digits; files count by name and size."""
        found = hashlib.sha256()
        for part in (self.images, self.labels):
            if isinstance(part, Tensor):
                found.update(str(tuple(part.shape)).encode())
                found.update(part.contiguous().cpu().numpy().data)
            else:
                found.update("".join(f"{path.name} {_size(path)} " for path in part.paths).encode())
        return found.hexdigest()[:16]

    def take(self, indices: Tensor) -> "ImageSet":
        """Select images by index, in that order."""
        return replace(self, images=_take(self.images, indices), labels=_take(self.labels, indices))


@dataclass(frozen=True)
class Splits:
    """Training, validation and test images of a data set; use the test images only for the final figure."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def resized(whole: ImageSet, size: tuple[int, int]) -> ImageSet:
    """Resize the images of a set in memory, with antialiasing."""
    if not isinstance(whole.images, Tensor) or whole.images.shape[2:] == size or not len(whole):
        return whole
    scaled = [
        F.interpolate(part.float(), size, mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
        for part in whole.images.split(SCALED_AT_ONCE)
    ]
    return replace(whole, images=torch.cat(scaled))


def check_labels(labels: Tensor, classes: int, ignore: int | None, name: str) -> None:
    """Raise a `DataError` unless every label is a class or the ignored label."""
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
            f"{name} has {classes} classes but the model has {outputs} outputs: build it with num_classes={classes}, "
            f"or train with --model.num_classes {classes}"
        )


def cut(whole: ImageSet, size: int | float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split off a random part, with the classes in proportion; the same for the same seed.

    Args:
        whole: The images to split.
        size: Fraction (a float below 1) or number (an int) of images in the part.
        seed: Seed of the random choice.

    Returns:
        The rest and the part, both in the original order.
    """
    count = math.floor(size * len(whole) + 0.5) if isinstance(size, float) else size
    if not 0 <= count <= len(whole) or (isinstance(size, float) and size >= 1):
        raise DataError(
            f"{whole.name}: cannot take {size} of {len(whole)} images: reduce data.validation or data.subset"
        )
    order = _balanced_order(whole, seed)
    return whole.take(order[count:].sort().values), whole.take(order[:count].sort().values)


def _balanced_order(image_set: ImageSet, seed: int) -> Tensor:
    """Return a random order of which every prefix has the classes in proportion."""
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


class About(BaseModel):
    """Input format of a trained network, for use without its data set.

    Attributes:
        size: (C, H, W), with one channel or three.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel, on the same scale.
        classes: Class names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[PositiveFloat, ...]
    classes: tuple[str, ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.size[0] == len(self.mean) == len(self.std) or self.size[0] not in (1, 3) or min(self.size) < 1:
            raise ValueError("size, mean and std must be of one or of three channels")
        return self

    @classmethod
    def of(cls, images: ImageSet, size: Sequence[int]) -> "About":
        """Describe the images of a data set, brought to a size."""
        channels, height, width = size
        return cls(size=(channels, height, width), mean=images.mean, std=images.std, classes=images.classes)

    @property
    def largest(self) -> float:
        """The largest number, either way, that any picture can hold once it is normalised."""
        return max(max(abs(mean), abs(1 - mean)) / std for mean, std in zip(self.mean, self.std, strict=True))

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise uint8 images of shape (N, C, H, W)."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images / 255.0 - mean) / std

    def read(self, paths: Sequence[Path | BinaryIO], *, fit: bool = False) -> Tensor:
        """Read image files as input for the network.

        Args:
            paths: Image files, or open ones, whose text names them in errors.
            fit: Resize images of another size to cover the input and crop them at the centre.

        Raises:
            DataError: A file is missing, not an image, or of another size.
        """
        return self.normalise(torch.stack([self._read(path, fit) for path in paths]))

    def _read(self, path: Path | BinaryIO, fit: bool) -> Tensor:
        channels, height, width = self.size
        with opened(path) as picture:
            if picture.size != (width, height) and not fit:
                raise DataError(
                    f"{path} has {picture.width}x{picture.height} pixels but the network takes {width}x{height}: "
                    "resize it, or use --fit to resize and crop"
                )
            plain = ImageOps.fit(picture.convert("RGB" if channels == 3 else "L"), (width, height))
            return torch.from_numpy(np.array(plain)).reshape(height, width, channels).permute(2, 0, 1)
