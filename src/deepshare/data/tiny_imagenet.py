"""Tiny-ImageNet-200 in its official layout; the official validation images serve as test set, as usual."""

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from deepshare.data.download import Archive, obtain
from deepshare.data.images import ImageSet
from deepshare.data.pictures import decode_all, decode_rgb, list_pictures
from deepshare.errors import DataError

ARCHIVE = Archive(
    folder="tiny-imagenet-200",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)
MEAN = (0.480, 0.448, 0.398)
STD = (0.277, 0.269, 0.282)
CACHE = "deepshare-{part}.safetensors"

Labelled = list[tuple[Path, int]]


def load_tiny_imagenet(data_dir: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Return the training images and the official validation images."""
    folder = obtain(ARCHIVE, data_dir, ("wnids.txt", "train", "val/images", "val/val_annotations.txt"), download)
    # Sorted, so that labels agree with any loader that goes by folder names.
    ids = sorted(_lines(folder / "wnids.txt"))
    names = _names(folder, ids)
    return _read(folder, "train", _training(folder, ids), names), _read(folder, "val", _validation(folder, ids), names)


def _training(folder: Path, ids: list[str]) -> Labelled:
    found: Labelled = []
    for label, wnid in enumerate(ids):
        pictures = list_pictures(folder / "train" / wnid / "images")
        if not pictures:
            raise DataError(f"{folder / 'train' / wnid / 'images'}: holds no images: fetch the data set again")
        found += [(path, label) for path in pictures]
    return found


def _validation(folder: Path, ids: list[str]) -> Labelled:
    annotations = folder / "val" / "val_annotations.txt"
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    found: Labelled = []
    for number, line in enumerate(_lines(annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in label_of:
            raise DataError(
                f"{annotations}, line {number}: '{wnid}' is no class of wnids.txt: fetch the data set again"
            )
        found.append((folder / "val" / "images" / name, label_of[wnid]))
    return sorted(found)


def _read(folder: Path, part: str, labelled: Labelled, names: tuple[str, ...]) -> ImageSet:
    if not labelled:
        raise DataError(f"{folder / part}: holds no images: fetch the data set again")
    paths = [path for path, _ in labelled]
    images = _cached(folder / CACHE.format(part=part), paths)
    if images.shape[1:] != (3, 64, 64):
        raise DataError(f"{folder / part}: images are {tuple(images.shape[1:])}, not (3, 64, 64)")
    return ImageSet("tiny-imagenet", images, torch.tensor([label for _, label in labelled]), names, MEAN, STD)


def _cached(cache: Path, paths: list[Path]) -> Tensor:
    """Return the decoded images, from the cache if it was made from the same files."""
    key = _fingerprint(paths)
    try:
        with safe_open(cache, framework="pt") as file:
            if (file.metadata() or {}).get("files") == key:
                images: Tensor = file.get_tensor("images")
                return images
    except (OSError, SafetensorError):
        pass  # missing or damaged: it is only a cache
    images = decode_all(paths, decode_rgb)
    temporary = cache.with_name(f".{cache.name}.{os.getpid()}")
    try:
        save_file({"images": images}, temporary, metadata={"files": key})
        temporary.replace(cache)
    except (OSError, SafetensorError):
        temporary.unlink(missing_ok=True)  # a read-only folder is slower, not wrong
    return images


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: is missing: fetch the data set again")
        state = path.stat()
        digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _names(folder: Path, ids: list[str]) -> tuple[str, ...]:
    """Return the class names; the word list is optional."""
    words = folder / "words.txt"
    pairs = (line.partition("\t")[::2] for line in (_lines(words) if words.exists() else []))
    called = {wnid: word.split(",")[0] for wnid, word in pairs}
    return tuple(called.get(wnid, wnid) for wnid in ids)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}): fetch the data set again") from error
