"""Tiny data sets in the official layouts, and the real ones where they are."""

import fcntl
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.layouts import write_cifar_batch, write_mask, write_picture

SHARED = Path(__file__).parents[3] / "shared" / "data"
Unpack = Callable[[str], Path]


@pytest.fixture(scope="session")
def real_data() -> Unpack:
    """Unpack a real data set once and for all test runs, and return the folder it is in."""
    if not (SHARED / "unpack").exists():
        pytest.skip(f"the real data is not there: no {SHARED}")
    folder = Path.home() / ".cache" / "deepshare-tests"

    folder.mkdir(parents=True, exist_ok=True)

    def unpack(name: str) -> Path:
        with (folder / ".lock").open("w") as lock:  # several test processes may want the same
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([SHARED / "unpack", folder, name], check=True, capture_output=True)
        return folder

    return unpack


@pytest.fixture
def cifar100_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    write_cifar_batch(folder / "train", 200, "fine_labels", 100)
    write_cifar_batch(folder / "test", 100, "fine_labels", 100)
    names = [f"name{number}" for number in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
    return tmp_path


@pytest.fixture
def cifar10_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(5):
        write_cifar_batch(folder / f"data_batch_{number + 1}", 20, "labels", 10, first=20 * number)
    write_cifar_batch(folder / "test_batch", 10, "labels", 10)
    names = [f"name{number}" for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    return tmp_path


@pytest.fixture
def tiny_imagenet_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    ids = [f"n{number:08d}" for number in (3, 1, 2)]
    for place, wnid in enumerate(ids):
        for number in range(4):
            write_picture(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", 60 * place + number)
    lines = []
    for number, wnid in enumerate(ids):
        # The first is greyscale, as some official ones are.
        write_picture(folder / "val" / "images" / f"val_{number}.JPEG", 100, mode="L" if number == 0 else "RGB")
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(ids) + "\n")
    (folder / "words.txt").write_text("n00000001\tgoldfish, Carassius\nn00000009\tnothing\n")
    return tmp_path


@pytest.fixture
def ade20k_dir(tmp_path: Path) -> Path:
    """Images of unequal size whose every mask has 'other' in its upper half and a class in its lower half."""
    folder = tmp_path / "ADEChallengeData2016"
    for part, count in (("training", 10), ("validation", 4)):
        for number in range(count):
            width, height = 20 + 2 * number, 16 + number
            write_picture(folder / "images" / part / f"ADE_{number:08d}.jpg", 40, (width, height))
            mask = np.zeros((height, width))
            mask[height // 2 :] = 150 if number == 0 else number
            write_mask(folder / "annotations" / part / f"ADE_{number:08d}.png", mask)
    return tmp_path


@pytest.fixture
def camvid_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "CamVid"
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        lines = []
        for number in range(count):
            write_picture(folder / part / f"frame{number}.png", 10 * number, (12, 8))
            mask = np.full((8, 12), number)
            mask[0] = 11
            write_mask(folder / f"{part}annot" / f"frame{number}.png", mask)
            lines.append(f"/SegNet/CamVid/{part}/frame{number}.png /SegNet/CamVid/{part}annot/frame{number}.png\n")
        (folder / f"{part}.txt").write_text("".join(lines))
    return tmp_path
