"""The user's own Dataset or DataLoader as a data source."""

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from deepshare.data.images import check_labels
from deepshare.errors import DataError


@dataclass(frozen=True, eq=False)
class UserData:
    """Description of the user's own data.

    Attributes:
        name: Name in messages.
        classes: Class names.
        ignore: Label to ignore.
    """

    name: str
    classes: tuple[str, ...]
    ignore: int | None

    def _check(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Validate a batch and return its images and labels."""
        if not isinstance(batch, Sequence) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
            raise DataError(f"{self.name}: each item must be a pair (image tensor, label), not {type(batch).__name__}")
        images, labels = batch
        if not images.is_floating_point():
            raise DataError(f"{self.name}: images must be float and normalised, not {images.dtype}")
        if labels.is_floating_point() or labels.ndim not in (1, 3):
            raise DataError(f"{self.name}: labels must be whole numbers, one per image or one per pixel")
        check_labels(labels, len(self.classes), self.ignore, self.name)
        return images, labels.long()


@dataclass(frozen=True, eq=False)
class UserSet(UserData):
    """A Dataset of (image, label) pairs, ready for the network."""

    dataset: "Dataset[Any]"

    def __len__(self) -> int:
        if not isinstance(self.dataset, Sized):
            raise DataError(f"{self.name}: {type(self.dataset).__name__} has no length: give it a __len__")
        return len(self.dataset)

    def read(self, places: Sequence[Tensor], seed: Callable[[int], int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Read batches; torch gets a seed for each image by its index, for the user's transforms."""
        for place in places:
            items = []
            with torch.random.fork_rng(devices=[]):
                for index in place.tolist():
                    torch.manual_seed(seed(index))
                    items.append(self.dataset[index])
            yield self._check(default_collate(items))


@dataclass(frozen=True, eq=False)
class UserLoader(UserData):
    """A DataLoader whose batches are ready for the network."""

    loader: "DataLoader[Any]"

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.loader)

    def read(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Read batches, skipping the first `start`."""
        yield from map(self._check, islice(self.loader, start, None))


def from_dataset(
    data: "Dataset[Any] | DataLoader[Any]", classes: int | Sequence[str], *, ignore: int | None = None
) -> UserSet | UserLoader:
    """Use a Dataset of (image, label) pairs, or a DataLoader, without augmentation or normalisation.

    A Dataset is shuffled, split among processes and resumed like any data set. A DataLoader is iterated as it is; its
    order, and whether it repeats, is up to the loader.

    Args:
        data: Yields float images and integer labels or masks.
        classes: Number of classes, or their names.
        ignore: Label to ignore.
    """
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    name = type(data).__name__
    if isinstance(data, DataLoader):
        return UserLoader(name, names, ignore, data)
    return UserSet(name, names, ignore, data)
