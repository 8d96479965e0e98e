"""The data of a run: images to train, validate and test on, and their preparation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from deepshare.data.augment import Augment, Transform
from deepshare.data.batching import Batches, Source, batches, generator
from deepshare.data.catalog import load as load_set
from deepshare.data.colour import Jitter
from deepshare.data.images import ImageSet, Splits, cut, height_and_width
from deepshare.data.scenes import Fit, SceneAugment
from deepshare.data.user import UserLoader, from_dataset
from deepshare.errors import DataError
from deepshare.training.evaluate import NO_LABEL, ImageView, Metrics, make_view, measure
from deepshare.training.recipe.files import Recipe
from deepshare.training.recipe.schema import Data

NUMBERS = 2**26  # upper bound of the numbers of a sample in memory


@dataclass(frozen=True)
class DataSource:
    """Images for training and validation, and for the final figure if there are any.

    Attributes:
        train_set: Training images.
        validation_set: Validation images.
        test_set: Test images, for the final figure only.
        augment: Random transform of training images.
        prepare: Transform of all other images.
        view: View of test images instead, if the recipe sets `data.evaluation`.
    """

    train_set: Source
    validation_set: Source
    test_set: Source | None
    augment: Transform | None
    prepare: Transform | None
    view: ImageView | None = None

    @property
    def input_size(self) -> tuple[int, ...]:
        """Size of one prepared image; training may crop it."""
        return self._shapes[0][1:]

    @property
    def segmentation(self) -> bool:
        """True if every pixel has a label."""
        return len(self._shapes[1]) > 1

    @cached_property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        source = self.test_set if self.test_set is not None and not len(self.train_set) else self.train_set
        images, labels = next(iter(batches(source, 1, augment=self.prepare)))
        return tuple(images.shape), tuple(labels.shape)

    @cached_property
    def checksum(self) -> str | None:
        """Checksum of all images; None for a user's own Datasets."""
        parts = [part for part in (self.train_set, self.validation_set, self.test_set) if part is not None]
        known = [part.checksum() for part in parts if isinstance(part, ImageSet)]
        return "-".join(known) if len(known) == len(parts) else None

    def check(self) -> None:
        """Check that there are images to train on; a copy with test images alone is for evaluation.

        Raises:
            DataError: There are no training or no validation images.
        """
        for part, key in ((self.train_set, "training"), (self.validation_set, "validation")):
            if not len(part):
                raise DataError(f"{part.name}: there are no {key} images: give some, or change data.validation")

    @property
    def ignore(self) -> int | None:
        """Label to ignore."""
        return self.train_set.ignore

    @property
    def skip(self) -> int:
        """Label to ignore, or one that never occurs."""
        return NO_LABEL if self.ignore is None else self.ignore

    def train(self, batch: int, seed: int, epoch: int, fabric: Fabric) -> Batches:
        """Return the training batches of this process; each batch of the recipe is split among all processes."""
        enough = isinstance(self.train_set, UserLoader) or len(self.train_set) >= batch
        return batches(
            self.train_set,
            batch // fabric.world_size,
            seed=seed,
            epoch=epoch,
            augment=self.augment,
            shuffle=True,
            rank=fabric.global_rank,
            world=fabric.world_size,
            drop_last=enough,
            device=fabric.device,
        )

    def sample(self, count: int) -> Tensor:
        """Draw a fixed random sample of `count` training images, prepared but not augmented; all if fewer."""
        images, _ = next(iter(batches(self.train_set, count, augment=self.prepare, shuffle=True)))
        return images

    def draw(self, count: int, batch: int) -> list[tuple[Tensor, Tensor]]:
        """Draw a fixed random sample of about `count` training images with labels, in batches; fewer if large."""
        few = min(count, NUMBERS // torch.Size(self.input_size).numel())
        drawn = batches(self.train_set, batch, augment=self.prepare, shuffle=True)
        return list(islice(drawn, -(-few // batch) or 1))

    def validate(self, model: nn.Module, batch: int, limit: int | None = None) -> Metrics:
        """Evaluate on the validation images."""
        return measure(model, self.validation_set, batch=batch, transform=self.prepare, limit=limit)

    def test(self, model: nn.Module, batch: int) -> Metrics | None:
        """Evaluate on the test images."""
        if self.test_set is None:
            return None
        return measure(model, self.test_set, batch=batch, transform=self.prepare, view=self.view)


def make_data_source(
    given: Any, recipe: Recipe, data_dir: str | Path | None = None, *, download: bool = False
) -> DataSource:
    """Load the data set of a recipe, or use given data instead.

    Args:
        given: None, the name of a data set, its splits, one Dataset (validation images are cut from it), or a
            sequence of two or three sets, Datasets or DataLoaders: training, validation, test.
        recipe: Recipe with the data set, the validation split and the augmentation.
        data_dir: Folder of data sets.
        download: Download a missing data set.

    Raises:
        DataError: The data is missing or damaged.
    """
    wanted = recipe.data
    seed = recipe.seed if wanted.seed is None else wanted.seed
    if given is None or isinstance(given, str):
        given = load_set(
            given or wanted.name,
            data_dir,
            validation=wanted.validation,
            seed=seed,
            download=download,
            subset=wanted.subset,
            image_size=wanted.image_size,
        )
    if isinstance(given, Splits):
        given = (given.train, given.validation, given.test)
    elif not isinstance(given, Sequence):
        given = _split(given, wanted.validation, seed)
    parts = [_source(part, recipe.model.num_classes) for part in given]
    if len(parts) not in (2, 3):
        raise DataError(f"{len(parts)} data sets were given: give training and validation, and test if there is one")
    train, prepare = transforms(parts[0], wanted)
    view = make_view(wanted.evaluation, wanted.image_size, parts[-1]) if wanted.evaluation else None
    return DataSource(parts[0], parts[1], parts[2] if len(parts) == 3 else None, train, prepare, view)


def transforms(source: Source, wanted: Data) -> tuple[Transform | None, Transform | None]:
    """Return the transforms of training images and of all others; none for a user's own data."""
    if not isinstance(source, ImageSet):
        return None, None
    settings = wanted.augmentation
    strength = settings.jitter
    jitter = Jitter(strength, strength, strength, settings.hue) if strength or settings.hue else None
    if not source.segmentation:
        return Augment(settings.crop_padding, settings.flip, jitter), None
    size = height_and_width(wanted.image_size)
    crop = height_and_width(settings.crop) if settings.crop else size
    return SceneAugment(crop, settings.scale or (1.0, 1.0), settings.flip, jitter), Fit(size)


def _source(part: Any, classes: int) -> Source:
    return from_dataset(part, classes) if isinstance(part, Dataset | DataLoader) else part


def _split(data: Any, validation: int | float, seed: int) -> tuple[Any, Any]:
    if isinstance(data, ImageSet):
        return cut(data, validation, seed)
    if not isinstance(data, Dataset):
        raise DataError("a DataLoader cannot be split: give two, for training and validation")
    total = len(data)  # type: ignore[arg-type]
    count = validation if isinstance(validation, int) else round(validation * total)
    if not 0 < count < total:
        raise DataError(f"cannot cut {count} validation images from {total}: change data.validation")
    order = torch.randperm(total, generator=generator(seed, "validation")).tolist()
    return Subset(data, order[count:]), Subset(data, order[:count])
