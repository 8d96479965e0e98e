"""Reading of batches from an image set by index."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from deepshare.data.augment import Transform
from deepshare.data.images import ImageSet
from deepshare.errors import DataError

Parts = list[tuple[Tensor, Tensor]]

READERS = 4  # threads that decode files
AHEAD = 2  # batches whose files are read ahead


def read_batches(
    image_set: ImageSet, places: Sequence[Tensor], transform: Transform, draws: Tensor, device: torch.device
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
    image_set: ImageSet, images: Tensor, labels: Tensor, transform: Transform, draws: Tensor
) -> tuple[Tensor, Tensor]:
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
