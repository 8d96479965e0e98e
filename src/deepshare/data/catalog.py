"""All data sets by name."""

from pathlib import Path

from deepshare.data.cifar import CIFAR10, CIFAR100, load_cifar
from deepshare.data.digits import load_digits
from deepshare.data.images import Splits, cut

NAMES = ("digits", "cifar10", "cifar100")


def load(
    name: str,
    data_dir: Path | str | None = None,
    *,
    validation: int | float = 0.1,
    seed: int = 0,
    download: bool = False,
    subset: int | None = None,
    image_size: int | None = None,
) -> Splits:
    """Load a data set."""
    folder = Path(data_dir or Path.home() / ".cache" / "deepshare").expanduser()
    if name == "digits":
        train, test = load_digits()
    else:
        train, test = load_cifar({"cifar10": CIFAR10, "cifar100": CIFAR100}[name], folder, download)
    train, held = cut(train, validation, seed)
    if subset:
        _, train = cut(train, subset, seed)
    return Splits(train, held, test)
