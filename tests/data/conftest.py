"""Tiny data sets in the official layouts."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.layouts import write_cifar_batch, write_mask, write_picture


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
