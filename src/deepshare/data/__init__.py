"""Data sets, augmentation and reproducible batches."""

from deepshare.data.augment import Augment, Transform
from deepshare.data.batches import Batches, Source, batches
from deepshare.data.catalog import NAMES, load
from deepshare.data.colour import Jitter
from deepshare.data.images import FileImages, ImageSet, Splits, check_classes
from deepshare.data.scenes import Fit, SceneAugment
from deepshare.data.user import UserLoader, UserSet, from_dataset

__all__ = [
    "NAMES",
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
