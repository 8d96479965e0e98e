from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepshare.data import Augment, FileImages, Fit, ImageSet, Jitter, batches
from deepshare.errors import DataError
from tests.data.layouts import tensor

ALL = Augment(crop_padding=1, flip=True, jitter=Jitter(0.2, 0.2, 0.2, 0.05))


@pytest.fixture
def numbered() -> ImageSet:
    """103 images; the label of each is its place."""
    images = torch.randint(0, 256, (103, 3, 4, 4), dtype=torch.uint8)
    names = tuple(map(str, range(103)))
    return ImageSet("numbered", images, torch.arange(103), names, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def places(found: Iterable[tuple[Tensor, Tensor]]) -> list[list[int]]:
    return [labels.tolist() for _, labels in found]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def files(count: int, decode: Callable[[int], Tensor]) -> FileImages:
    return FileImages(tuple(Path(str(index)) for index in range(count)), lambda path: decode(int(path.name)))


def test_without_shuffling_order_and_pixels_are_those_of_the_set(numbered: ImageSet) -> None:
    found = batches(numbered, 10)
    assert len(found) == 11
    assert places(found) == [list(range(start, min(start + 10, 103))) for start in range(0, 103, 10)]
    images, labels = next(iter(found))
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    torch.testing.assert_close(images, (tensor(numbered.images)[:10].float() / 255 - mean) / std)
    assert labels.dtype == torch.int64


def test_shuffling_is_a_new_permutation_for_each_seed_and_epoch(numbered: ImageSet) -> None:
    orders = [
        flat(places(batches(numbered, 10, seed=seed, epoch=epoch, shuffle=True))) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert all(sorted(order) == list(range(103)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    again = flat(places(batches(numbered, 7, seed=1, epoch=1, shuffle=True)))
    assert again == orders[3]


def test_the_global_random_state_plays_no_part(numbered: ImageSet) -> None:
    before = torch.random.get_rng_state()
    torch.manual_seed(1)
    first = list(batches(numbered, 10, shuffle=True, augment=ALL))
    torch.manual_seed(2)
    second = list(batches(numbered, 10, shuffle=True, augment=ALL))
    for (images, labels), (others, other_labels) in zip(first, second, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)
    torch.random.set_rng_state(before)
    list(batches(numbered, 10, shuffle=True, augment=ALL))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("start", [0, 1, 5, 10, 11, 20])
def test_entered_in_the_middle_an_epoch_goes_on_bit_for_bit(numbered: ImageSet, start: int) -> None:
    whole = list(batches(numbered, 10, seed=3, epoch=2, shuffle=True, augment=ALL))
    rest = batches(numbered, 10, seed=3, epoch=2, shuffle=True, augment=ALL, start=start)
    found = list(rest)
    assert len(found) == len(rest) == max(0, 11 - start)
    for (images, labels), (others, other_labels) in zip(whole[start:], found, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_augmentation_differs_between_epochs(numbered: ImageSet) -> None:
    (first, _), (second, _) = (next(iter(batches(numbered, 103, epoch=epoch, augment=ALL))) for epoch in (0, 1))
    assert (first != second).flatten(1).any(1).float().mean() > 0.95


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_each_batch_of_one_process(numbered: ImageSet, world: int) -> None:
    whole = list(batches(numbered, 12 * world, seed=1, shuffle=True, augment=ALL, drop_last=True))
    parts = [
        list(batches(numbered, 12, seed=1, shuffle=True, augment=ALL, drop_last=True, rank=rank, world=world))
        for rank in range(world)
    ]
    assert {len(part) for part in parts} == {len(whole)}
    for step, (images, labels) in enumerate(whole):
        assert torch.equal(torch.cat([part[step][1] for part in parts]), labels)
        torch.testing.assert_close(torch.cat([part[step][0] for part in parts]), images, rtol=0, atol=1e-5)


def test_without_drop_last_processes_see_every_image_once(numbered: ImageSet) -> None:
    seen = [places(batches(numbered, 17, rank=rank, world=3)) for rank in range(3)]
    assert sorted(flat(map(flat, seen))) == list(range(103))


def test_drop_last(numbered: ImageSet) -> None:
    assert [len(batch) for batch in places(batches(numbered, 10, drop_last=True))] == [10] * 10


def test_too_few_images_for_a_batch_are_refused(numbered: ImageSet) -> None:
    with pytest.raises(DataError, match="numbered: 103 images are not enough for a batch of 128"):
        batches(numbered, 64, world=2, drop_last=True)
    with pytest.raises(DataError, match="0 images are not enough for a batch"):
        batches(numbered.take(torch.tensor([], dtype=torch.int64)), 10)


def test_files_are_read_in_order_and_ahead(numbered: ImageSet) -> None:
    lazy = ImageSet(
        "lazy",
        files(103, tensor(numbered.images).__getitem__),
        numbered.labels,
        numbered.classes,
        numbered.mean,
        numbered.std,
    )
    for (images, labels), (others, other_labels) in zip(
        batches(numbered, 10, shuffle=True, augment=ALL), batches(lazy, 10, shuffle=True, augment=ALL), strict=True
    ):
        torch.testing.assert_close(images, others, rtol=0, atol=1e-5)
        assert torch.equal(labels, other_labels)


def test_a_file_that_fails_stops_the_reading() -> None:
    def fail(index: int) -> Tensor:
        if index == 25:
            raise DataError("image 25: damaged")
        return torch.zeros(3, 4, 4, dtype=torch.uint8)

    lazy = ImageSet("lazy", files(50, fail), torch.zeros(50, dtype=torch.int64), ("a",), (0.5,) * 3, (0.5,) * 3)
    found = iter(batches(lazy, 10))
    assert [len(next(found)[0]) for _ in range(2)] == [10, 10]
    with pytest.raises(DataError, match="image 25: damaged"):
        next(found)


def test_images_of_unequal_size_need_a_crop_or_a_frame() -> None:
    sizes = [(6, 8), (8, 6), (5, 5)]
    images = files(3, lambda index: torch.full((3, *sizes[index]), 255, dtype=torch.uint8))
    masks = files(3, lambda index: torch.full(sizes[index], 1, dtype=torch.uint8))
    lazy = ImageSet("lazy", images, masks, ("a", "b"), (0.5,) * 3, (0.5,) * 3, ignore=255)
    with pytest.raises(DataError, match="images of unequal size cannot form a batch: use a crop"):
        list(batches(lazy, 3))
    ((found, labels),) = batches(lazy, 3, augment=Fit((8, 8)))
    assert found.shape == (3, 3, 8, 8)
    assert (labels == 1).sum((1, 2)).tolist() == [48, 48, 64]
    assert labels.dtype == torch.int64


def test_image_and_mask_of_unequal_size_are_refused() -> None:
    images = files(1, lambda _: torch.zeros(3, 4, 4, dtype=torch.uint8))
    masks = files(1, lambda _: torch.zeros(4, 5, dtype=torch.uint8))
    lazy = ImageSet("lazy", images, masks, ("a", "b"), (0.5,) * 3, (0.5,) * 3, ignore=255)
    with pytest.raises(DataError, match=r"image 0 and its mask differ in size: \(4, 4\) and \(4, 5\)"):
        list(batches(lazy, 1))
