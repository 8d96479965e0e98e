"""Batches whose order is a pure function of seed and epoch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.data.augment import DRAWS, Augment, Transform
from deepshare.data.images import ImageSet
from deepshare.data.reading import read_batches
from deepshare.data.seeds import generator
from deepshare.data.user import UserLoader, UserSet
from deepshare.errors import DataError

Batch = tuple[Tensor, Tensor]
Source = ImageSet | UserSet | UserLoader


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one process in one epoch; iterating again gives the same batches."""

    length: int
    begin: Callable[[], Iterator[Batch]]
    device: torch.device

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in self.begin():
            yield images.to(self.device), labels.to(self.device)


def batches(
    source: Source,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    augment: Transform | None = None,
    shuffle: bool = False,
    rank: int = 0,
    world: int = 1,
    drop_last: bool = False,
    start: int = 0,
    device: torch.device | str = "cpu",
) -> Batches:
    """Iterate over a data set once, in batches of float images and int64 labels (or masks).

    Order and augmentation of an image depend only on seed, epoch and its index in the set, not on the number of
    processes or the first batch. A short last batch is split among the processes; empty parts are omitted, so training
    in several processes needs `drop_last`.

    Args:
        source: An `ImageSet`, or your own data from `from_dataset`.
        batch_size: Images per batch and process.
        seed: Seed of order and augmentation.
        epoch: Epoch, counted from 0.
        augment: Transform applied before normalisation; none by default.
        shuffle: Use a random order.
        rank: Rank of this process.
        world: Number of processes that share the data.
        drop_last: Drop the last batch if it is not full.
        start: Number of batches to skip.
        device: Device of the batches and of the augmentation.
    """
    device = torch.device(device)
    if isinstance(source, UserLoader):
        return Batches(max(0, len(source) - start), lambda: source.read(start), device)
    if not len(source) or (drop_last and len(source) < batch_size * world):
        raise DataError(f"{source.name}: {len(source)} images are not enough for a batch of {batch_size * world}")
    order = torch.randperm(len(source), generator=generator(seed, epoch, "order")) if shuffle else None
    places = _places(torch.arange(len(source)) if order is None else order, batch_size, rank, world, drop_last)[start:]
    if isinstance(source, UserSet):
        return Batches(len(places), lambda: source.read(places, seed, epoch), device)
    draws = torch.rand(len(source), DRAWS, generator=generator(seed, epoch, "augmentation"))
    return Batches(len(places), lambda: read_batches(source, places, augment or Augment(), draws, device), device)


def _places(order: Tensor, batch_size: int, rank: int, world: int, drop_last: bool) -> list[Tensor]:
    """Return the indices of each batch of one process."""
    whole = batch_size * world
    together = [part for part in order.split(whole) if len(part) == whole or not drop_last]
    mine = [part.tensor_split(world)[rank] for part in together]
    return [part for part in mine if len(part)]
