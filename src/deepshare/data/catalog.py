"""All data sets by name."""

from difflib import get_close_matches
from pathlib import Path

from deepshare.data.cifar import CIFAR10, CIFAR100, load_cifar
from deepshare.data.digits import load_digits
from deepshare.data.folder import load_folder
from deepshare.data.images import ImageSet, Splits, cut, resized
from deepshare.data.pictures import Size, height_and_width
from deepshare.data.segmentation import load_ade20k, load_camvid
from deepshare.data.tiny_imagenet import load_tiny_imagenet
from deepshare.errors import DataError

NAMES = ("digits", "cifar10", "cifar100", "tiny-imagenet", "ade20k", "camvid", "folder:PATH")


def default_data_dir() -> Path:
    """Return where data sets are looked for and downloaded to if nothing else is said."""
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
    """Load a data set and cut validation images from its training images; the test images are the official ones.

    CamVid and a folder with `val` and `test` come with validation images of their own. A folder without test images
    has as many of them cut from its training images as for validation, the same ones for any seed.

    Args:
        name: One of `NAMES`; after `folder:` the path of a folder with one folder of pictures per class.
        data_dir: The folder in which the data set's own folder is, or that folder itself.
        validation: A share of the training images (0.1) or a number of them (5000).
        seed: Of what is cut for validation and of the subset.
        download: Whether to fetch a data set that is not there.
        subset: Keep only so many of the training images, of every class its share.
        image_size: What images are scaled to, for CIFAR, and what pictures are scaled and cut to, for `folder:`; no
            other data set has a use for it.
    """
    folder = Path(data_dir).expanduser() if data_dir else default_data_dir()
    train, held, test = _parts(name, folder, download, image_size)
    if test is None:
        train, test = cut(train, validation, seed=0)
    if held is None:
        # Where there is nothing to train on, there is nothing to cut either: such a copy serves evaluation alone.
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
            near = get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
            raise DataError(
                f"no data set is named '{name}', and no folder: did you mean '{near}'? There are {', '.join(NAMES)}"
            )
    return train, None, test
