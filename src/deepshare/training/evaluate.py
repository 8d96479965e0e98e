"""The evaluation of a network: exact counts over a data set, also on images of another size than its input."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from deepshare.data.augment import Transform
from deepshare.data.batching import Source, batches
from deepshare.data.catalog import load
from deepshare.data.images import ImageSet, Size, height_and_width
from deepshare.data.scenes import Fit
from deepshare.data.user import from_dataset
from deepshare.errors import DataError

NO_LABEL = -100  # no label of any data set
Evaluation = Literal["whole", "sliding"]
STEP = 2 / 3  # of the input, from one crop to the next; usual for ADE20K


@dataclass(frozen=True)
class Metrics:
    """The figures of a network on a data set.

    Attributes:
        loss: Mean cross-entropy.
        n: Images.
        accuracy: Share of images, or of labelled pixels, whose class is right.
        miou: Mean intersection over union of the classes that occur; None unless it is segmentation.
    """

    loss: float
    n: int
    accuracy: float
    miou: float | None = None

    @property
    def score(self) -> float:
        """The figure that networks are chosen by: mIoU for segmentation, accuracy otherwise."""
        return self.accuracy if self.miou is None else self.miou


def evaluate(
    model: nn.Module,
    data: "str | Source | Dataset[Any] | DataLoader[Any]",
    *,
    data_dir: Path | None = None,
    image_size: Size | None = None,
    evaluation: Evaluation | None = None,
    batch: int = 256,
) -> Metrics:
    """Evaluate a network on its current device.

    Args:
        model: The network; its mode is restored afterwards.
        data: Name of a data set, for its test images, or any images: an image set, a Dataset or a DataLoader.
        data_dir: Folder of data sets.
        image_size: Fit every image into a frame of this size, a square or (height, width); needed for images of
            unequal size.
        evaluation: Mode for masks of another size than `image_size`. By default image and mask are fitted into the
            frame. "whole" fits the image and resizes the logits to the mask. "sliding" covers the image with
            overlapping crops of `image_size` and averages their logits.
        batch: Batch size; it affects the result only by rounding.

    Raises:
        DataError: The data set is missing or damaged.
    """
    source = load(data, data_dir).test if isinstance(data, str) else data
    if isinstance(source, Dataset | DataLoader):
        source = from_dataset(source, classes=_outputs(model, source))
    transform = Fit(height_and_width(image_size)) if image_size else None
    view = make_view(evaluation, image_size, source) if evaluation else None
    return measure(model, source, batch=batch, transform=transform, view=view)


def measure(
    model: nn.Module,
    source: Source,
    *,
    batch: int,
    transform: Transform | None = None,
    view: "ImageView | None" = None,
    limit: int | None = None,
) -> Metrics:
    """Evaluate a network on a set, or on its first `limit` batches, with a transform or a view."""
    like = next(model.parameters(), torch.empty(0))
    # Seen through a view images keep the size of their masks, and those of files may be unequal.
    alone = view is not None and isinstance(source, ImageSet) and not isinstance(source.images, Tensor)
    fed = batches(source, 1 if alone else batch, augment=view or transform, device=like.device)
    cast = ((images.to(like.dtype), labels) for images, labels in islice(fed, limit))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _count(model, cast, len(source.classes), source.ignore, view)
    finally:
        model.train(training)


def _count(
    model: nn.Module, fed: Iterable[tuple[Tensor, Tensor]], classes: int, ignore: int | None, view: "ImageView | None"
) -> Metrics:
    images_seen, loss, pixels = 0, 0.0, False
    table = torch.zeros(classes, classes, dtype=torch.long)  # rows: right class, columns: predicted class
    skip = NO_LABEL if ignore is None else ignore
    for images, labels in fed:
        logits = view.logits(model, images, (labels.shape[1], labels.shape[2])) if view else model(images)
        loss += F.cross_entropy(logits, labels, ignore_index=skip, reduction="sum").item()
        known = labels != skip
        pairs = labels[known] * classes + logits.argmax(1)[known]
        table += torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu()
        images_seen += len(images)
        pixels = labels.ndim > 1
    right, total = table.diagonal(), max(int(table.sum()), 1)
    accuracy = int(right.sum()) / total
    return Metrics(loss / total, images_seen, accuracy, _mean_iou(table) if pixels else None)


def _mean_iou(table: Tensor) -> float:
    union = table.sum(0) + table.sum(1) - table.diagonal()
    occurs = union > 0
    return float((table.diagonal()[occurs].double() / union[occurs]).mean()) if occurs.any() else 0.0


def _outputs(model: nn.Module, data: "Dataset[Any] | DataLoader[Any]") -> int:
    images = next(iter(data))[0] if isinstance(data, DataLoader) else data[0][0][None]
    device = next(model.parameters(), torch.empty(0)).device
    training = model.training
    with torch.no_grad():
        outputs = int(model.eval()(images.to(device)).shape[1])
    model.train(training)
    return outputs


class ImageView(Transform, Protocol):
    """Transform of images that keeps their masks, and logits at the size of those masks."""

    def logits(self, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Tensor:
        """Run a network on prepared images, and return logits of the size of their masks."""
        ...


@dataclass(frozen=True)
class Whole:
    """Fits the whole image into the network's input, and resizes the logits to the mask.

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
        """See `ImageView`."""
        return Fit(self.size).undo(model(images), size)


@dataclass(frozen=True)
class Sliding:
    """Resizes the image to cover the network's input, and averages the logits of overlapping crops.

    Attributes:
        size: Height and width of the input; the shorter side of the image gets the length of a square one.
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
        """See `ImageView`."""
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
    """Return the starts of evenly spaced crops, with the last one moved back to the end.

    >>> starts(512, 512), starts(683, 512)
    ([0], [0, 171])
    """
    step = max(1, int(STEP * part))
    count = math.ceil((whole - part) / step) + 1
    return [min(number * step, whole - part) for number in range(count)]


def make_view(evaluation: Evaluation, image_size: Size | None, source: Source) -> ImageView:
    """Make the view of an evaluation.

    Raises:
        DataError: The images have no masks, or are the user's own.
    """
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
