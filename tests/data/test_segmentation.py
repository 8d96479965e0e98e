"""ADE20K and CamVid in their official layouts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepshare.data import Fit, SceneAugment, batches, load
from deepshare.errors import DataError
from tests.data.layouts import tensor, write_mask
from tests.data.unpacked import Unpack


def test_ade20k_layout(ade20k_dir: Path) -> None:
    splits = load("ade20k", ade20k_dir, validation=0.2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (8, 2, 4)
    assert (len(splits.test.classes), splits.test.ignore) == (150, 255)
    assert [splits.test.labels[index].unique().tolist() for index in range(4)] == [
        [149, 255],
        [0, 255],
        [1, 255],
        [2, 255],
    ]
    assert splits.test.images[3].shape == (3, 19, 26)
    images, masks = next(iter(batches(splits.train, 4, augment=SceneAugment((16, 16)), shuffle=True)))
    assert images.shape == (4, 3, 16, 16)
    assert masks.shape == (4, 16, 16)
    ((images, masks),) = batches(splits.test, 4, augment=Fit((24, 24)))
    assert images.shape == (4, 3, 24, 24)
    assert masks[1].unique().tolist() == [0, 255]


def test_ade20k_with_validation_images_alone(ade20k_dir: Path) -> None:
    folder = ade20k_dir / "ADEChallengeData2016"
    for kind in ("images", "annotations"):
        for path in (folder / kind / "training").iterdir():
            path.unlink()
        (folder / kind / "training").rmdir()
    splits = load("ade20k", folder, validation=200)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (0, 0, 4)
    with pytest.raises(DataError, match="ade20k: 0 images are not enough for a batch"):
        batches(splits.train, 2, shuffle=True)


def test_ade20k_damage_is_named(ade20k_dir: Path) -> None:
    folder = ade20k_dir / "ADEChallengeData2016"
    write_mask(folder / "annotations/validation/ADE_00000002.png", np.full((18, 24), 151))
    with pytest.raises(DataError, match=r"validation/ADE_00000002\.png: label 151 is out of range 0 to 150"):
        list(batches(load("ade20k", ade20k_dir).test, 2, augment=Fit((8, 8))))
    (folder / "annotations/validation/ADE_00000002.png").unlink()
    with pytest.raises(DataError, match=r"validation/ADE_00000002\.png: is missing"):
        load("ade20k", ade20k_dir)
    with pytest.raises(DataError, match="no ADEChallengeData2016 in"):
        load("ade20k", ade20k_dir / "ADEChallengeData2016" / "images")


def test_camvid_layout(camvid_dir: Path) -> None:
    splits = load("camvid", camvid_dir)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (6, 3, 2)
    assert (len(splits.train.classes), splits.train.ignore) == (11, 11)
    assert tensor(splits.train.images)[:, 1, 3, 3].tolist() == [0, 10, 20, 30, 40, 50]
    assert tensor(splits.train.labels)[:, 1, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor(splits.train.labels)[:, 0].unique().tolist() == [11]
    ((images, masks),) = batches(splits.test, 2)
    assert (images.shape, masks.shape, masks.dtype) == ((2, 3, 8, 12), (2, 8, 12), torch.int64)


def test_camvid_without_lists(camvid_dir: Path) -> None:
    for path in (camvid_dir / "CamVid").glob("*.txt"):
        path.unlink()
    assert len(load("camvid", camvid_dir / "CamVid").train) == 6


def test_camvid_damage_is_named(camvid_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = camvid_dir / "CamVid"
    write_mask(folder / "valannot/frame1.png", np.full((8, 12), 12))
    with pytest.raises(DataError, match=r"valannot[/\\]frame1\.png: label 12 is out of range 0 to 11"):
        load("camvid", camvid_dir)
    write_mask(folder / "valannot/frame1.png", np.full((8, 11), 1))
    with pytest.raises(DataError, match=r"valannot[/\\]frame1\.png: has shape \(8, 11\)"):
        load("camvid", camvid_dir)
    Image.new("RGB", (12, 8)).save(folder / "valannot/frame0.png")
    with pytest.raises(DataError, match=r"valannot[/\\]frame0\.png: a mask has one channel"):
        load("camvid", camvid_dir)
    (folder / "train/frame3.png").unlink()
    with pytest.raises(DataError, match=r"train[/\\]frame3\.png: is missing"):
        load("camvid", camvid_dir)
    with pytest.raises(DataError, match=r"no CamVid in .*: put the folder CamVid of https://github\.com/"):
        load("camvid", tmp_path_factory.mktemp("empty"))


def test_real_camvid(real_data: Unpack) -> None:
    splits = load("camvid", real_data("camvid-240x180"))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [367, 101, 233]
    assert tensor(splits.train.images).shape[1:] == (3, 180, 240)
    assert tensor(splits.train.labels).unique().tolist() == list(range(12))


def test_real_ade20k_validation_images(real_data: Unpack) -> None:
    splits = load("ade20k", real_data("ade20k-val30-150class") / "ADEChallengeData2016-val30")
    assert (len(splits.train), len(splits.test)) == (0, 30)
    assert splits.test.classes[:3] == ("wall", "building", "sky")
    images, masks = next(iter(batches(splits.test, 4, augment=Fit((128, 128)))))
    assert images.shape == (4, 3, 128, 128)
    height, width = splits.test.images[0].shape[1:]
    rows = 128 * height / width  # a wide picture: black and ignored above and below it
    assert masks[0, : int(64 - rows / 2)].unique().tolist() == [255]
    assert (masks[0] != 255).float().mean().item() == pytest.approx(
        (splits.test.labels[0] != 255).float().mean().item() * rows / 128, abs=0.01
    )


def test_real_ade20k_training_images(real_data: Unpack) -> None:
    splits = load("ade20k", real_data("ade20k-ground13-256") / "ADE20K-ground13", validation=80)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (720, 80, 200)
    crop = SceneAugment((96, 96))
    images, masks = next(iter(batches(splits.train, 16, augment=crop, shuffle=True, drop_last=True)))
    assert images.shape == (16, 3, 96, 96)
    # The 13 classes of the ground by the numbers of the list of 150, less one.
    ground = {3, 6, 9, 11, 13, 28, 29, 46, 52, 53, 59, 94, 121, 255}
    assert set(masks.unique().tolist()) <= ground
