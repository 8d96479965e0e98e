"""Folders of images, with one subfolder per class."""

from pathlib import Path

import pytest
import torch

from deepshare.data import FileImages, batches, load
from deepshare.data import folder as folder_module
from deepshare.errors import DataError
from tests.data.layouts import tensor, write_picture


def pictures(folder: Path, count: int, size: tuple[int, int] = (10, 8)) -> None:
    for place, name in enumerate(("cat", "dog")):
        for number in range(count):
            write_picture(folder / name / f"{number}.png", 100 * place + number, size)


def test_folder_of_classes_is_cut_in_three(tmp_path: Path) -> None:
    pictures(tmp_path, 20)
    splits = load(f"folder:{tmp_path}", validation=0.1)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (32, 4, 4)
    assert splits.train.classes == ("cat", "dog")
    assert tensor(splits.train.images).shape == (32, 3, 8, 10)
    seen = torch.cat([tensor(part.images)[:, 0, 0, 0] for part in (splits.train, splits.validation, splits.test)])
    assert sorted(seen.tolist()) == [*range(20), *range(100, 120)]
    other = load(f"folder:{tmp_path}", validation=0.1, seed=1)
    assert torch.equal(tensor(other.test.images), tensor(splits.test.images))


def test_folder_with_parts(tmp_path: Path) -> None:
    pictures(tmp_path / "train", 10)
    pictures(tmp_path / "val", 3)
    splits = load(f"folder:{tmp_path}", validation=4)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (16, 4, 6)
    pictures(tmp_path / "test", 5)
    splits = load(f"folder:{tmp_path}", validation=4)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (20, 6, 10)


def test_folder_pictures_of_unequal_size_need_an_image_size(tmp_path: Path) -> None:
    pictures(tmp_path, 4)
    write_picture(tmp_path / "dog" / "wide.jpg", 90, (40, 20))
    with pytest.raises(DataError, match=r"wide\.jpg: has shape \(3, 20, 40\).*give an image size"):
        load(f"folder:{tmp_path}")
    splits = load(f"folder:{tmp_path}", validation=1, image_size=16)
    assert tensor(splits.train.images).shape[1:] == (3, 16, 16)


def test_a_large_folder_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, 10)
    in_memory = load(f"folder:{tmp_path}", validation=2)
    monkeypatch.setattr(folder_module, "IN_MEMORY", 100)
    on_disk = load(f"folder:{tmp_path}", validation=2)
    assert isinstance(on_disk.train.images, FileImages)
    for (images, labels), (others, other_labels) in zip(
        batches(in_memory.train, 5, shuffle=True), batches(on_disk.train, 5, shuffle=True), strict=True
    ):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_folder_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="found 0 folders with pictures: one folder per class"):
        load(f"folder:{tmp_path}")
    pictures(tmp_path / "train", 3)
    write_picture(tmp_path / "val" / "horse" / "1.png", 5, (10, 8))
    with pytest.raises(DataError, match="class 'horse' has no training pictures"):
        load(f"folder:{tmp_path}")
