"""Data sets by name."""

from pathlib import Path

from deepshare.data.cifar import CIFAR10, CIFAR100, load_cifar
from deepshare.data.digits import load_digits
from deepshare.data.folder import load_folder
from deepshare.data.images import ImageSet, Size, Splits, cut, height_and_width, resized
from deepshare.data.segmentation import load_ade20k, load_camvid
from deepshare.data.tiny_imagenet import load_tiny_imagenet
from deepshare.errors import DataError
from deepshare.text import nearest

FIXED = {"digits": 8, "tiny-imagenet": 64}  # height and width of images that are never resized
NAMES = ("digits", "cifar10", "cifar100", "tiny-imagenet", "ade20k", "camvid", "folder:PATH")


def default_data_dir() -> Path:
    """Default folder of data sets and downloads."""
    return Path.home() / ".cache" / "deepshare"


def load(
    name: str,
    data_dir: Path | str | None = None,
    *,
    validation: int | float = 0.1,
    seed: int = 0,
    download: bool = False,
    subset: int | None = None,
    image_size: Size | None = None,
) -> Splits:
    """Load a data set and split validation images off its training images; the test images are the official ones.

    CamVid, and a folder with `val` and `test`, have validation images of their own. In a folder without test images as
    many are split off the training images as for validation, the same ones for any seed.

    Args:
        name: One of `NAMES`; `folder:` is followed by the path of a folder with one folder of images per class.
        data_dir: The parent folder of the data set, or the data set's own folder.
        validation: Fraction (0.1) or number (5000) of the training images to split off.
        seed: Seed of the validation split and of the subset.
        download: Download the data set if it is missing.
        subset: Keep only this many training images, with the classes in proportion.
        image_size: Size to which CIFAR images are resized, and images of `folder:` resized and cropped. Scenes keep
            their size here; that of digits and of Tiny-ImageNet cannot be changed.

    Raises:
        DataError: The data set is unknown, missing or damaged, or its images have another size.
    """
    if name in FIXED and image_size is not None and height_and_width(image_size) != (FIXED[name],) * 2:
        given = "x".join(map(str, height_and_width(image_size)))
        raise DataError(f"{name} has images of {FIXED[name]}x{FIXED[name]}, not of {given}: set data.image_size back")
    folder = Path(data_dir).expanduser() if data_dir else default_data_dir()
    train, held, test = _parts(name, folder, download, image_size)
    if test is None:
        train, test = cut(train, validation, seed=0)
    if held is None:
        # A copy without training images is for evaluation only and has nothing to split.
        train, held = cut(train, validation if len(train) else 0, seed)
    if subset is not None:
        _, train = cut(train, subset, seed)
    return Splits(train, held, test)


def _parts(
    name: str, data_dir: Path, download: bool, image_size: Size | None
) -> tuple[ImageSet, ImageSet | None, ImageSet | None]:
    kind, _, path = name.partition(":")
    match kind:
        case "folder" if path:
            return load_folder(Path(path).expanduser(), image_size)
        case "camvid":
            return load_camvid(data_dir)
        case "digits":
            train, test = load_digits()
        case "cifar10" | "cifar100":
            train, test = load_cifar(CIFAR10 if kind == "cifar10" else CIFAR100, data_dir, download)
            if image_size:
                train, test = (resized(part, height_and_width(image_size)) for part in (train, test))
        case "tiny-imagenet":
            train, test = load_tiny_imagenet(data_dir, download)
        case "ade20k":
            train, test = load_ade20k(data_dir, download)
        case _:
            near = nearest(name, NAMES, cutoff=0)
            raise DataError(f'there is no data set or folder "{name}"{near} Known are {", ".join(NAMES)}')
    return train, None, test
