"""CIFAR-10 and CIFAR-100 from their official pickles, read without executing code from them."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepshare.data.download import Archive, obtain
from deepshare.data.images import ImageSet
from deepshare.errors import DataError


@dataclass(frozen=True)
class Cifar:
    """Description of one of the two data sets."""

    name: str
    archive: Archive
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    label_key: str
    names_key: str
    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


CIFAR10 = Cifar(
    name="cifar10",
    archive=Archive(
        folder="cifar-10-batches-py",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
    ),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    label_key="labels",
    names_key="label_names",
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Cifar(
    name="cifar100",
    archive=Archive(
        folder="cifar-100-python",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
    train=("train",),
    test=("test",),
    meta="meta",
    label_key="fine_labels",
    names_key="fine_label_names",
    classes=100,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


def load_cifar(which: Cifar, data_dir: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Return the official training and test images."""
    folder = obtain(which.archive, data_dir, (*which.train, *which.test, which.meta), download)
    classes = _class_names(folder / which.meta, which)
    return _read_part(folder, which.train, classes, which), _read_part(folder, which.test, classes, which)


def _class_names(path: Path, which: Cifar) -> tuple[str, ...]:
    names = read_pickle(path).get(which.names_key)
    if not isinstance(names, list) or len(names) != which.classes:
        raise DataError(f"{path}: expected {which.classes} names under '{which.names_key}': fetch the file again")
    return tuple(str(name) for name in names)


def _read_part(folder: Path, names: tuple[str, ...], classes: tuple[str, ...], which: Cifar) -> ImageSet:
    batches = [_read_batch(folder / name, which) for name in names]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ImageSet(which.name, images, labels, classes, which.mean, which.std)


def _read_batch(path: Path, which: Cifar) -> tuple[Tensor, Tensor]:
    content = read_pickle(path)
    pixels, labels = content.get("data"), content.get(which.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        raise DataError(f"{path}: 'data' is not uint8 of shape (N, 3072): fetch the file again")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(isinstance(each, int) for each in labels):
        raise DataError(
            f"{path}: '{which.label_key}' is not a list of {len(pixels)} whole numbers: fetch the file again"
        )
    if wrong := [label for label in labels if not 0 <= label < which.classes]:
        raise DataError(f"{path}: label {wrong[0]} is out of range 0 to {which.classes - 1}: fetch the file again")
    return torch.from_numpy(pixels.copy()).view(-1, 3, 32, 32), torch.tensor(labels)


def _latin1(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only numpy arrays and plain containers; refuses anything else before it runs."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype"})

    def find_class(self, module: str, name: str) -> Any:
        if module in {"numpy", "numpy.core.multiarray", "numpy._core.multiarray"} and name in self.allowed:
            return super().find_class("numpy._core.multiarray" if name == "_reconstruct" else "numpy", name)
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # bytes, as Python 3 writes them for Python 2
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no CIFAR file does")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays, lists, strings and numbers."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    # A damaged pickle can raise almost anything; the way out is always the same.
    except Exception as error:
        raise DataError(f"{path}: damaged or not a CIFAR file ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not a dictionary: fetch it again")
    return content
