"""Decoding of image files, with errors that name the file."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from deepshare.errors import DataError
from deepshare.text import printable

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})
READERS = 4  # threads that decode files
# Others are rare, and some start programs (EPS) or have decoders that are seldom looked at.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
# Some hundred kB can hold a picture that takes gigabytes.
MOST_PIXELS = 1 << 26
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `opened` refuses them


def list_pictures(folder: Path) -> list[Path]:
    """Return the image files of a folder, not of its subfolders, sorted by name."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from error


def decode_rgb(path: Path) -> Tensor:
    """Read an image of any mode as RGB: uint8 of shape (3, H, W)."""
    return _decode(path, lambda picture: picture.convert("RGB")).permute(2, 0, 1).contiguous()


def decode_covering(path: Path, size: tuple[int, int]) -> Tensor:
    """Read an image as RGB, resized to cover a size and centre-cropped: uint8 of shape (3, height, width)."""
    height, width = size
    cut = _decode(path, lambda picture: ImageOps.fit(picture.convert("RGB"), (width, height), Image.Resampling.BICUBIC))
    return cut.permute(2, 0, 1).contiguous()


def decode_mask(path: Path) -> Tensor:
    """Read a mask of labels: uint8 of shape (H, W)."""
    mask = _decode(path, lambda picture: picture)
    if mask.ndim != 2 or mask.dtype != torch.uint8:
        raise DataError(f"{path}: a mask has one channel of 8 bits, this has shape {tuple(mask.shape)} of {mask.dtype}")
    return mask


def decode_all(paths: Sequence[Path], decode: Callable[[Path], Tensor]) -> Tensor:
    """Read images of equal size into one tensor, with several threads."""
    first = decode(paths[0])
    images = first.new_empty(len(paths), *first.shape)

    def place(index: int) -> None:
        picture = decode(paths[index])
        if picture.shape != first.shape:
            sizes = f"{tuple(picture.shape)}, but {paths[0]} has {tuple(first.shape)}"
            raise DataError(f"{paths[index]}: has shape {sizes}: give an image size, or make them equal")
        images[index] = picture

    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(place, range(len(paths))):
            pass
    return images


def _decode(path: Path, convert: Callable[[Image.Image], Image.Image]) -> Tensor:
    with opened(path) as picture:
        return torch.from_numpy(np.array(convert(picture)))


@contextmanager
def opened(path: Path | BinaryIO) -> Iterator[Image.Image]:
    """Open an image file, or read one that is open.

    Raises:
        DataError: The file is missing or damaged, or has too many pixels.
    """
    try:
        with Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise DataError(
                    f"{path}: has {picture.width}x{picture.height} pixels, more than {MOST_PIXELS:,}: reduce it first"
                )
            yield picture
    except DataError:
        raise
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder: give the pictures in it") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: is missing: check the path; if it is of a data set, fetch that again") from error
    # Pillow raises nearly anything for damaged files, depending on the format.
    except Exception as error:
        raise DataError(f"{path}: damaged or no image ({printable(str(error))}): fetch it again") from error
