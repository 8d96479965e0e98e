import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deepshare.data import load
from deepshare.data.cifar import read_pickle
from deepshare.data.images import ImageSet, resized
from deepshare.errors import DataError
from tests.data.layouts import tensor
from tests.data.unpacked import Unpack


def test_cifar100_pixels_and_labels(cifar100_dir: Path) -> None:
    splits = load("cifar100", cifar100_dir, validation=0)
    assert tensor(splits.train.images).shape == (200, 3, 32, 32)
    assert tensor(splits.train.images).dtype == torch.uint8
    for channel in range(3):
        expected = (torch.arange(200) + 50 * channel) % 256
        assert torch.equal(tensor(splits.train.images)[:, channel, 31, 0].long(), expected)
    assert torch.equal(tensor(splits.train.labels), torch.arange(200) % 100)
    assert splits.train.classes[7] == "name7"
    assert len(splits.test) == 100


def test_cifar10_joins_its_batches(cifar10_dir: Path) -> None:
    splits = load("cifar10", cifar10_dir, validation=0)
    assert torch.equal(tensor(splits.train.images)[:, 0, 0, 0].long(), torch.arange(100))
    assert torch.equal(tensor(splits.train.labels), torch.arange(100) % 10)


def test_the_data_sets_own_folder_is_accepted_as_well(cifar100_dir: Path) -> None:
    assert len(load("cifar100", cifar100_dir / "cifar-100-python").test) == 100


def test_missing_folder_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no cifar-100-python in .*: put that folder there .*cifar-100-python\.tar\.gz"
    ):
        load("cifar100", tmp_path)


def test_missing_file_is_named(cifar100_dir: Path) -> None:
    (cifar100_dir / "cifar-100-python" / "meta").unlink()
    with pytest.raises(DataError, match="cifar-100-python lacks meta: remove the folder"):
        load("cifar100", cifar100_dir)


@pytest.mark.parametrize("kept", [0, 1, 1000, 100_000])
def test_truncated_file_is_named(cifar100_dir: Path, kept: int) -> None:
    path = cifar100_dir / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"cifar-100-python[/\\]train: .*fetch it again"):
        load("cifar100", cifar100_dir)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([1, 2], "holds a list"),
        ({"fine_labels": [0]}, "'data' is not uint8"),
        ({"data": np.zeros((2, 3072), np.float32), "fine_labels": [0, 1]}, "'data' is not uint8"),
        ({"data": np.zeros((2, 100), np.uint8), "fine_labels": [0, 1]}, "'data' is not uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0]}, "not a list of 2 whole numbers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, "'fine_labels' is not a list"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 100]}, "label 100 is out of range 0 to 99"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [-1, 5]}, "label -1 is out of range 0 to 99"),
    ],
)
def test_wrong_content_is_named(cifar100_dir: Path, content: object, complaint: str) -> None:
    (cifar100_dir / "cifar-100-python" / "test").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=rf"cifar-100-python[/\\]test: .*{complaint}"):
        load("cifar100", cifar100_dir)


class Evil:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


def test_a_pickle_cannot_run_anything(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for evil in (
        Evil(os.mkdir, str(victim)),
        Evil(eval, f"__import__('os').mkdir({str(victim)!r})"),
        Evil(np.load, "x"),
    ):
        path = tmp_path / "train"
        path.write_bytes(pickle.dumps({"data": evil}, protocol=2))
        with pytest.raises(DataError, match=r"it refers to .*which no CIFAR file does"):
            read_pickle(path)
        assert not victim.exists()


def test_object_arrays_do_not_open_a_way_round(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({"data": np.array([Evil(os.mkdir, str(victim))], dtype=object)}, protocol=2))
    with pytest.raises(DataError, match="it refers to"):
        read_pickle(path)
    assert not victim.exists()


def test_real_cifar100(real_data: Unpack) -> None:
    splits = load("cifar100", real_data("cifar-100-python"), validation=5000)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (45_000, 5_000, 10_000)
    assert torch.equal(torch.bincount(tensor(splits.validation.labels)), torch.full((100,), 50))
    assert torch.equal(torch.bincount(tensor(splits.test.labels)), torch.full((100,), 100))
    for channel in range(3):
        parts = (tensor(part.images)[:, channel].flatten() for part in (splits.train, splits.validation))
        counts = torch.stack([torch.bincount(part, minlength=256) for part in parts]).sum(0)
        weights, values = counts / counts.sum(), torch.arange(256) / 255
        mean = (weights * values).sum().item()
        # The values that everybody normalises CIFAR-100 by are those of its training images.
        assert mean == pytest.approx(splits.train.mean[channel], abs=1e-3)
        assert (weights * (values - mean) ** 2).sum().sqrt().item() == pytest.approx(
            splits.train.std[channel], abs=2e-4
        )


def test_images_are_scaled_in_all_parts_alike(cifar100_dir: Path) -> None:
    whole, half = (load("cifar100", cifar100_dir, validation=20, image_size=size) for size in (32, 16))
    assert torch.equal(tensor(whole.train.images), tensor(load("cifar100", cifar100_dir, validation=20).train.images))
    for part in ("train", "validation", "test"):
        large, small = (getattr(splits, part) for splits in (whole, half))
        assert tensor(small.images).shape == (len(large), 3, 16, 16)
        assert tensor(small.images).dtype == torch.uint8
        assert torch.equal(tensor(small.labels), tensor(large.labels))
        assert (tensor(small.images).float().mean() - tensor(large.images).float().mean()).abs() < 0.5
    assert whole.test.checksum() != half.test.checksum()
    assert tensor(load("cifar100", cifar100_dir, image_size=(8, 16)).test.images).shape[2:] == (8, 16)


def test_scaling_smooths_instead_of_leaving_pixels_out() -> None:
    pixels = torch.zeros(5000, 1, 4, 4, dtype=torch.uint8)
    pixels[:, :, ::2] = 200  # every other row
    small = resized(ImageSet("rows", pixels, torch.zeros(5000).long(), ("a",), (0.5,), (0.5,)), (2, 2))
    assert tensor(small.images).shape == (5000, 1, 2, 2)
    assert tensor(small.images).float().sub(100).abs().max() < 30
