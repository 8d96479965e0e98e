"""How good a network is: exact counts over a data set."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from deepshare.data import Fit, ImageSet, Source, Transform, batches, from_dataset, load
from deepshare.data.pictures import Size, height_and_width
from deepshare.training.losses import NO_LABEL
from deepshare.training.views import Evaluation, View, make_view


@dataclass(frozen=True)
class Result:
    """What a network achieves on a data set.

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
) -> Result:
    """Evaluate a network on the device where it is.

    Args:
        model: The network; its mode is restored afterwards.
        data: The name of a data set, whose test images are taken, or any images: a set, a Dataset or a DataLoader.
        data_dir: Where data sets are.
        image_size: Fit every image into a frame of this size, a square or (height, width); images of unequal size need
            it.
        evaluation: For segmentation, how masks of another size than `image_size` are judged. By default image and mask
            are fitted into the frame. "whole" fits the image and scales the logits back to the mask; "sliding" covers
            the image by overlapping crops of `image_size` and takes the mean of their logits.
        batch: Images at a time; it does not change the result beyond rounding.

    Raises:
        DataError: The data set is missing or damaged.
    """
    source = load(data, data_dir).test if isinstance(data, str) else data
    if isinstance(source, Dataset | DataLoader):
        source = from_dataset(source, classes=_outputs(model, source))
    transform = Fit(height_and_width(image_size)) if image_size else None
    view = make_view(evaluation, image_size, source)
    return measure(model, source, batch=batch, transform=transform, view=view)


def measure(
    model: nn.Module,
    source: Source,
    *,
    batch: int,
    transform: Transform | None = None,
    view: View | None = None,
    limit: int | None = None,
) -> Result:
    """Evaluate a network on a set, or on its first so many batches; a view stands in the place of a transform."""
    like = next(model.parameters(), torch.empty(0))
    # Seen through a view images keep the size of their masks, and those of files may be unequal.
    alone = view is not None and isinstance(source, ImageSet) and not isinstance(source.images, Tensor)
    feed = batches(source, 1 if alone else batch, augment=view or transform, device=like.device)
    cast = ((images.to(like.dtype), labels) for images, labels in islice(feed, limit))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _count(model, cast, len(source.classes), source.ignore, view)
    finally:
        model.train(training)


def _count(
    model: nn.Module, feed: Iterable[tuple[Tensor, Tensor]], classes: int, ignore: int | None, view: View | None
) -> Result:
    images_seen, loss, pixels = 0, 0.0, False
    table = torch.zeros(classes, classes, dtype=torch.long)  # rows: right class, columns: predicted class
    skip = NO_LABEL if ignore is None else ignore
    for images, labels in feed:
        logits = view.logits(model, images, (labels.shape[1], labels.shape[2])) if view else model(images)
        loss += F.cross_entropy(logits, labels, ignore_index=skip, reduction="sum").item()
        known = labels != skip
        pairs = labels[known] * classes + logits.argmax(1)[known]
        table += torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu()
        images_seen += len(images)
        pixels = labels.ndim > 1
    right, total = table.diagonal(), max(int(table.sum()), 1)
    accuracy = int(right.sum()) / total
    return Result(loss / total, images_seen, accuracy, _mean_iou(table) if pixels else None)


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
