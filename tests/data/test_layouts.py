from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepshare.data import FileImages, Fit, SceneAugment, batches, load
from deepshare.data import folder as folder_module
from deepshare.errors import DataError
from tests.data.layouts import tensor, write_mask, write_picture

Unpack = Callable[[str], Path]


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

    def watched(path: Path) -> Image.Image:
        decoded.append(path)
        return original(path)

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
    with pytest.raises(DataError, match=r"valannot/frame1\.png: label 12 is out of range 0 to 11"):
        load("camvid", camvid_dir)
    write_mask(folder / "valannot/frame1.png", np.full((8, 11), 1))
    with pytest.raises(DataError, match=r"valannot/frame1\.png: has shape \(8, 11\)"):
        load("camvid", camvid_dir)
    Image.new("RGB", (12, 8)).save(folder / "valannot/frame0.png")
    with pytest.raises(DataError, match=r"valannot/frame0\.png: a mask has one channel"):
        load("camvid", camvid_dir)
    (folder / "train/frame3.png").unlink()
    with pytest.raises(DataError, match=r"train/frame3\.png: is missing"):
        load("camvid", camvid_dir)
    with pytest.raises(DataError, match=r"no CamVid in .*: put the folder CamVid of https://github\.com/"):
        load("camvid", tmp_path_factory.mktemp("empty"))


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


def test_real_tiny_imagenet(real_data: Unpack) -> None:
    splits = load("tiny-imagenet", real_data("tiny-imagenet-200-subset60"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (10_800, 1_200, 5_000)
    assert torch.bincount(tensor(splits.validation.labels)).unique().tolist() == [6]
    assert torch.bincount(tensor(splits.test.labels)).unique().tolist() == [25]
    assert splits.train.classes[0] == "goldfish"
    mean = tensor(splits.train.images).float().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx(splits.train.mean, abs=0.01)


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
