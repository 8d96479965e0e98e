"""Data sets by name, and their splits."""

import pytest
import torch

from deepshare.data import load
from deepshare.errors import DataError
from tests.data.layouts import tensor


def test_digits() -> None:
    splits = load("digits", validation=200)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (1297, 200, 300)
    assert tensor(splits.train.images).shape[1:] == (1, 8, 8)
    assert tensor(splits.train.images).max() == 255
    everything = torch.cat([tensor(splits.train.images), tensor(splits.validation.images)]).float() / 255
    assert everything.mean().item() == pytest.approx(splits.train.mean[0], abs=1e-4)
    assert everything.std().item() == pytest.approx(splits.train.std[0], abs=1e-3)
    for part in (splits.train, splits.validation, splits.test):
        share = torch.bincount(tensor(part.labels)) / len(part)
        assert share.sub(0.1).abs().max() < 0.01


def test_the_test_set_is_the_same_for_any_seed() -> None:
    first, second = load("digits", seed=0), load("digits", seed=1)
    assert torch.equal(tensor(first.test.images), tensor(second.test.images))
    assert not torch.equal(tensor(first.validation.images), tensor(second.validation.images))


def test_a_subset_is_balanced_and_leaves_validation_alone() -> None:
    full, part = load("digits", seed=5), load("digits", seed=5, subset=100)
    assert torch.equal(tensor(full.validation.images), tensor(part.validation.images))
    assert len(part.train) == 100
    assert torch.bincount(tensor(part.train.labels)).sub(10).abs().max() <= 1
    with pytest.raises(DataError, match="cannot take 2000 of"):
        load("digits", subset=2000)


@pytest.mark.parametrize(("name", "size"), [("digits", 16), ("tiny-imagenet", (64, 32))])
def test_a_size_that_images_do_not_have_is_refused(name: str, size: int | tuple[int, int]) -> None:
    with pytest.raises(DataError, match=rf"{name} has images of \d+x\d+, not of .*: set data\.image_size back"):
        load(name, image_size=size)
    assert len(load("digits", image_size=8).test) == 300


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match='there is no data set or folder "cifar-100", did you mean "cifar100"'):
        load("cifar-100")
