"""Batches in an order that is a pure function of seed and epoch, from memory or read ahead from files.

All randomness of training is drawn from generators with a key of their own, so that a resumed run draws the same
numbers.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.data.augment import DRAWS, Transform
from deepshare.data.images import ImageSet
from deepshare.data.pictures import READERS
from deepshare.data.user import UserLoader, UserSet
from deepshare.errors import DataError

Batch = tuple[Tensor, Tensor]
Source = ImageSet | UserSet | UserLoader
Parts = list[tuple[Tensor, Tensor]]

AHEAD = 2  # batches whose files are read ahead


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
        return Batches(len(places), lambda: source.read(places, lambda index: seed_of(seed, epoch, index)), device)
    draws = torch.rand(len(source), DRAWS, generator=generator(seed, epoch, "augmentation"))
    return Batches(len(places), lambda: read_batches(source, places, augment, draws, device), device)


def _places(order: Tensor, batch_size: int, rank: int, world: int, drop_last: bool) -> list[Tensor]:
    """Return the indices of each batch of one process."""
    size = batch_size * world
    everybodys = [part for part in order.split(size) if len(part) == size or not drop_last]
    mine = [part.tensor_split(world)[rank] for part in everybodys]
    return [part for part in mine if len(part)]


def read_batches(
    image_set: ImageSet, places: Sequence[Tensor], transform: Transform | None, draws: Tensor, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of the given indices, transformed by their random numbers and normalised."""
    mean, std = (torch.tensor(value, device=device).view(-1, 1, 1) for value in (image_set.mean, image_set.std))
    if isinstance(image_set.images, Tensor) and isinstance(image_set.labels, Tensor):
        raw = _read_memory(image_set.images, image_set.labels, places)
    else:
        raw = _read_files(image_set, places)
    for place, parts in zip(places, raw, strict=True):
        chosen, done = draws[place].to(device).split([len(images) for images, _ in parts]), []
        for (images, labels), own in zip(parts, chosen, strict=True):
            done.append(_transform(image_set, images.to(device), labels.to(device), transform, own))
        images, labels = _join(done, image_set.name)
        yield images.sub_(mean).div_(std), labels.long()


def _transform(
    image_set: ImageSet, images: Tensor, labels: Tensor, transform: Transform | None, draws: Tensor
) -> tuple[Tensor, Tensor]:
    if transform is None:
        return images.float().div_(255), labels
    if image_set.ignore is None or not image_set.segmentation:
        return transform(images, None, draws, 0)[0], labels
    images, masks = transform(images, labels, draws, image_set.ignore)
    return images, labels if masks is None else masks


def _join(parts: Parts, name: str) -> tuple[Tensor, Tensor]:
    """Concatenate transformed parts, which may have had unequal sizes before."""
    if len({images.shape[1:] for images, _ in parts}) > 1:
        raise DataError(
            f"{name}: images of unequal size cannot form a batch: use a crop for training, Fit for evaluation"
        )
    if len(parts) == 1:
        return parts[0]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _read_memory(images: Tensor, labels: Tensor, places: Sequence[Tensor]) -> Iterator[Parts]:
    """Yield each batch as one part."""
    for place in places:
        yield [(images[place], labels[place])]


def _read_files(image_set: ImageSet, places: Sequence[Tensor]) -> Iterator[Parts]:
    """Yield each batch image by image, since sizes may differ; read later batches ahead."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="deepshare-read")
    waiting: deque[list[Future[tuple[Tensor, Tensor]]]] = deque()
    try:
        for place in places:
            waiting.append([pool.submit(_read_one, image_set, index) for index in place.tolist()])
            if len(waiting) > AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        pool.shutdown(cancel_futures=True)


def _read_one(image_set: ImageSet, index: int) -> tuple[Tensor, Tensor]:
    images, labels = image_set.images[index], image_set.labels[index]
    if image_set.segmentation and images.shape[1:] != labels.shape:
        sizes = f"{tuple(images.shape[1:])} and {tuple(labels.shape)}"
        raise DataError(f"{image_set.name}: image {index} and its mask differ in size: {sizes}")
    return images[None], labels[None]


def generator(*key: int | str) -> torch.Generator:
    """Return a generator seeded by the whole key."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed derived from the whole key."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
