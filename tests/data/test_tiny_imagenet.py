"""Tiny-ImageNet in its official layout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from deepshare.data import load
from deepshare.errors import DataError
from tests.data.layouts import tensor, write_picture
from tests.data.unpacked import Unpack


def test_tiny_imagenet_layout(tiny_imagenet_dir: Path) -> None:
    splits = load("tiny-imagenet", tiny_imagenet_dir, validation=0)
    assert splits.train.classes == ("goldfish", "n00000002", "n00000003")
    assert tensor(splits.train.labels).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    # In wnids.txt the classes come as 3, 1, 2, and their images were painted in that order.
    assert tensor(splits.train.images)[:, 0, 5, 5].tolist() == pytest.approx(
        [60, 61, 62, 63, 120, 121, 122, 123, 0, 1, 2, 3], abs=1
    )
    assert tensor(splits.test.labels).tolist() == [2, 0, 1]
    assert tensor(splits.test.images)[0, :, 0, 0].tolist() == [100, 100, 100]


def test_tiny_imagenet_is_decoded_once(tiny_imagenet_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("tiny-imagenet", tiny_imagenet_dir)
    decoded: list[Path] = []
    original = Image.open

    def watched(path: Path, **options: Any) -> Image.Image:
        decoded.append(path)
        return original(path, **options)

    monkeypatch.setattr(Image, "open", watched)
    second = load("tiny-imagenet", tiny_imagenet_dir)
    assert decoded == []
    assert torch.equal(tensor(first.train.images), tensor(second.train.images))
    assert torch.equal(tensor(first.train.labels), tensor(second.train.labels))
    changed = tiny_imagenet_dir / "tiny-imagenet-200/train/n00000001/images/n00000001_2.JPEG"
    write_picture(changed, 200)
    third = load("tiny-imagenet", tiny_imagenet_dir, validation=0)
    assert decoded
    assert tensor(third.train.images)[2, 0, 0, 0] == 200


def test_tiny_imagenets_cache_may_be_damaged_or_impossible(tiny_imagenet_dir: Path) -> None:
    folder = tiny_imagenet_dir / "tiny-imagenet-200"
    first = load("tiny-imagenet", tiny_imagenet_dir)
    cache = folder / "deepshare-train.safetensors"
    cache.write_bytes(cache.read_bytes()[:100])
    assert torch.equal(tensor(load("tiny-imagenet", tiny_imagenet_dir).train.images), tensor(first.train.images))
    cache.unlink()
    cache.mkdir()
    assert torch.equal(tensor(load("tiny-imagenet", tiny_imagenet_dir).train.images), tensor(first.train.images))
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_tiny_imagenet_damage_is_named(tiny_imagenet_dir: Path) -> None:
    folder = tiny_imagenet_dir / "tiny-imagenet-200"
    picture = folder / "train/n00000001/images/n00000001_2.JPEG"
    whole = picture.read_bytes()
    for content in (b"", b"no picture", whole[: len(whole) // 2]):
        picture.write_bytes(content)
        with pytest.raises(DataError, match=r"n00000001_2\.JPEG: damaged or no image .*: fetch it again"):
            load("tiny-imagenet", tiny_imagenet_dir)
    write_picture(picture, 5, size=(32, 32))
    with pytest.raises(DataError, match=r"n00000001_2\.JPEG: has shape \(3, 32, 32\)"):
        load("tiny-imagenet", tiny_imagenet_dir)
    picture.write_bytes(whole)
    (folder / "val/images/val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_1\.JPEG: is missing"):
        load("tiny-imagenet", tiny_imagenet_dir)
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn00000001\t0\nval_1.JPEG\tn99\t0\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt, line 2: 'n99' is no class"):
        load("tiny-imagenet", tiny_imagenet_dir)
    for path in (folder / "train/n00000002/images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"n00000002/images: holds no images"):
        load("tiny-imagenet", tiny_imagenet_dir)


def test_real_tiny_imagenet(real_data: Unpack) -> None:
    splits = load("tiny-imagenet", real_data("tiny-imagenet-200-subset60"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (10_800, 1_200, 5_000)
    assert torch.bincount(tensor(splits.validation.labels)).unique().tolist() == [6]
    assert torch.bincount(tensor(splits.test.labels)).unique().tolist() == [25]
    assert splits.train.classes[0] == "goldfish"
    mean = tensor(splits.train.images).float().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx(splits.train.mean, abs=0.01)
