"""Any folder of images, with one subfolder per class."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from deepshare.data.images import IMAGENET_MEAN, IMAGENET_STD, FileImages, ImageSet, Size, height_and_width
from deepshare.data.pictures import decode_all, decode_covering, decode_rgb, list_pictures
from deepshare.errors import DataError

VALIDATION_FOLDERS = ("val", "valid", "validation")
IN_MEMORY = 1 << 30  # bytes of decoded images; larger sets are decoded on demand


def load_folder(folder: Path, image_size: Size | None) -> tuple[ImageSet, ImageSet | None, ImageSet | None]:
    """Return training, validation and test images; the latter two only if they have folders.

    The layout is `folder/train/class/*.jpg`, with `val`, `test` or both next to `train`, or `folder/class/*.jpg`. If
    only one of `val` and `test` exists, it is the test set.

    Args:
        folder: Folder of the images.
        image_size: Size to which every image is resized and cropped; without it all must have the same size.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give a folder with one folder of pictures per class")
    if not (folder / "train").is_dir():
        return _read(folder, _classes(folder), image_size), None, None
    classes = _classes(folder / "train")
    train = _read(folder / "train", classes, image_size)
    others = [folder / name for name in (*VALIDATION_FOLDERS, "test") if (folder / name).is_dir()]
    parts = [_read(other, classes, image_size) for other in others]
    if len(parts) > 2:
        raise DataError(f"{folder}: has {', '.join(other.name for other in others)}: keep one for validation")
    return train, parts[0] if len(parts) == 2 else None, parts[-1] if parts else None


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(sorted(inner.name for inner in folder.iterdir() if inner.is_dir() and list_pictures(inner)))
    if len(classes) < 2:
        raise DataError(f"{folder}: found {len(classes)} folders with pictures: one folder per class, at least two")
    return classes


def _read(folder: Path, classes: tuple[str, ...], image_size: Size | None) -> ImageSet:
    unknown = {inner.name for inner in folder.iterdir() if inner.is_dir() and list_pictures(inner)} - set(classes)
    if unknown:
        raise DataError(f"{folder}: class '{min(unknown)}' has no training pictures: add some or remove it")
    found = [
        (path, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for path in list_pictures(folder / name)
    ]
    if not found:
        raise DataError(f"{folder}: holds no pictures")
    labels = torch.tensor([label for _, label in found])
    images = _images([path for path, _ in found], image_size)
    # Nothing is known about the images.
    return ImageSet(f"folder:{folder}", images, labels, classes, IMAGENET_MEAN, IMAGENET_STD)


def _images(paths: list[Path], image_size: Size | None) -> Tensor | FileImages:
    decode = partial(decode_covering, size=height_and_width(image_size)) if image_size else decode_rgb
    if decode(paths[0]).numel() * len(paths) <= IN_MEMORY:
        return decode_all(paths, decode)
    return FileImages(tuple(paths), decode)
