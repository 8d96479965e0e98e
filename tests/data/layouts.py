"""Files in the layouts of the official data sets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from deepshare.data import FileImages


def tensor(images: Tensor | FileImages) -> Tensor:
    assert isinstance(images, Tensor)
    return images


def write_cifar_batch(path: Path, count: int, label_key: str, classes: int, first: int = 0) -> None:
    """Write a batch whose image i is filled with its number plus the channel's, labelled in turn."""
    pixels = np.zeros((count, 3, 1024), dtype=np.uint8)
    pixels += (first + np.arange(count)).astype(np.uint8)[:, None, None]
    pixels += np.arange(3, dtype=np.uint8)[None, :, None] * 50
    labels = [(first + index) % classes for index in range(count)]
    path.write_bytes(pickle.dumps({"data": pixels.reshape(count, -1), label_key: labels}, protocol=2))


def write_picture(path: Path, value: int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> None:
    """Write a picture of one colour; size is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (value, value, value) if mode == "RGB" else value
    Image.new(mode, size, colour).save(path)


def write_mask(path: Path, labels: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels.astype(np.uint8)).save(path)


def write_camvid(folder: Path) -> Path:
    """Write six training, three validation and two test images of CamVid; return the folder that holds them."""
    home = folder / "CamVid"
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        lines = []
        for number in range(count):
            write_picture(home / part / f"frame{number}.png", 10 * number, (12, 8))
            mask = np.full((8, 12), number)
            mask[0] = 11
            write_mask(home / f"{part}annot" / f"frame{number}.png", mask)
            lines.append(f"/SegNet/CamVid/{part}/frame{number}.png /SegNet/CamVid/{part}annot/frame{number}.png\n")
        (home / f"{part}.txt").write_text("".join(lines))
    return folder
