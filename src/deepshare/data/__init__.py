"""Data sets, augmentation and reproducible batches.

Public names are imported on first use: a client of private inference, which only reads pictures, needs few of them.
"""

from functools import partial
from typing import TYPE_CHECKING

from deepshare.lazy import attribute

if TYPE_CHECKING:
    from deepshare.data.augment import Augment, Transform
    from deepshare.data.batching import Batches, Source, batches
    from deepshare.data.catalog import NAMES, load
    from deepshare.data.colour import Jitter
    from deepshare.data.images import About, FileImages, ImageSet, Splits, check_classes
    from deepshare.data.scenes import Fit, SceneAugment
    from deepshare.data.user import UserLoader, UserSet, from_dataset

__all__ = [
    "NAMES",
    "About",
    "Augment",
    "Batches",
    "FileImages",
    "Fit",
    "ImageSet",
    "Jitter",
    "SceneAugment",
    "Source",
    "Splits",
    "Transform",
    "UserLoader",
    "UserSet",
    "batches",
    "check_classes",
    "from_dataset",
    "load",
]

_MODULE_OF = {
    "Augment": "augment",
    "Transform": "augment",
    "Batches": "batching",
    "Source": "batching",
    "batches": "batching",
    "NAMES": "catalog",
    "load": "catalog",
    "Jitter": "colour",
    "About": "images",
    "FileImages": "images",
    "ImageSet": "images",
    "Splits": "images",
    "check_classes": "images",
    "Fit": "scenes",
    "SceneAugment": "scenes",
    "UserLoader": "user",
    "UserSet": "user",
    "from_dataset": "user",
}

__getattr__ = partial(attribute, __name__, _MODULE_OF)


def __dir__() -> list[str]:
    return __all__
