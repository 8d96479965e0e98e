"""Arguments shared by several verbs."""

import gc
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from deepshare.errors import DeepShareError
from deepshare.private.runtime import MODULES

if TYPE_CHECKING:
    from torch import nn

ENGINES = " or ".join(", ".join(MODULES).rsplit(", ", 1))

DEFAULT_ENGINE = "gateshare"
_META = "torch._meta_registrations"

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Model = Annotated[
    str,
    Parameter(
        help="resnet18, wrn22-8, deeplabv3-mobilenetv2, timm:NAME, torchvision:NAME, smp:ARCHITECTURE/ENCODER, or "
        "PACKAGE.MODULE:FACTORY of your own code."
    ),
]
ModelArguments = Annotated[
    dict[str, int | float | bool | str] | None,
    Parameter(
        name="--model.arguments",
        help="Arguments of the network, each by its name, as for deepshare train: --model.arguments.width 16.",
    ),
]
InputSize = Annotated[
    str | None,
    Parameter(metavar="CxHxW", help="Channels, height and width of one image; by default the network's own."),
]
AnswerKind = Annotated[
    Literal["class", "top5", "logits"],
    Parameter(help="What the client gets: logits, or the best class or five best classes and no logits (gateshare)."),
]
Engines = Annotated[str, Parameter(name=["--engine", "-e"], help=f"{ENGINES}.")]
Best = Annotated[Flag, Parameter(help="Use the weights with the best validation score.")]
RunArgument = Annotated[Path, Parameter(help="Folder of a finished run, or a name that deepshare networks lists.")]
ComparisonBits = Annotated[
    str | None,
    Parameter(
        help="Bits of a comparison of gateshare, by default all, 32 or more: a number, or calibrated for as many as "
        "leave about one gate in 40,000 wrong at the most. Fewer bits mean smaller keys and faster gates."
    ),
]
TlsFolder = Annotated[
    Path | None, Parameter(name="--tls", help="Folder with the certificates of this party; see private keys.")
]
PoolFolder = Annotated[
    Path | None,
    Parameter(name="--pool", help="Folder with the pool of this party; see private deal and prepare."),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """Changes of a network before its gates are found.

    Attributes:
        relu6_to_relu: Replace every ReLU6 by a ReLU first, so that its gate can be shared too.
        piecewise_to_relu: Write ReLU6, hard-swish, hard-sigmoid, LeakyReLU, PReLU and maxima of two tensors as ReLUs
            first, which computes the same.
        smooth_to_relu: Replace SiLU, GELU, ELU, Mish, Softplus and hard-swish by ReLU first, and Sigmoid by a hard
            sigmoid.
        maxpool: Max-pooling as gates that are found, planned and counted: exact keeps them all, beyond the budget;
            shared takes them from the budget; avg replaces it by average pooling.
    """

    relu6_to_relu: Flag = False
    piecewise_to_relu: Flag = False
    smooth_to_relu: Flag = False
    maxpool: Literal["exact", "shared", "avg"] | None = None

    @property
    def given(self) -> dict[str, bool | str]:
        """The changes that are asked for, by their key of a recipe's [model]."""
        return {key: value for key, value in asdict(self).items() if value}


NO_REWRITING = Rewriting()
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON.")]


@contextmanager
def importing(*, lean: bool = False) -> Iterator[None]:
    """Import torch without looking for garbage in modules, then or at exit: a quarter of the time that it takes.

    Args:
        lean: Also without what torch registers for its meta device, another third, and needs for generators of random
            numbers: for a process that only asks. Whatever imports that module later gets it.
    """
    absent = ModuleType(_META)
    if lean and "torch" not in sys.modules:
        sys.modules[_META] = absent
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if sys.modules.get(_META) is absent:
            del sys.modules[_META]


def build(model: str, rewriting: Rewriting, **arguments: Any) -> "nn.Module":
    """Build a network by name, with random weights."""
    import deepshare
    from deepshare.sharing.piecewise import rewritten

    built = deepshare.zoo.build(model, **arguments)
    wanted = asdict(rewriting)
    return rewritten(deepshare.relu6_to_relu(built) if wanted.pop("relu6_to_relu") else built, **wanted)


def note_weights(model: str) -> None:
    """Say that no weights are fetched, where a name promises some."""
    from deepshare.zoo.names import promises_weights

    if promises_weights(model):
        print(f"{model}: no weights are fetched: deepshare train and export take them with --weights", file=sys.stderr)


def size_of(model: str, input_size: str | None) -> tuple[int, int, int]:
    """Parse an input size such as 3x32x32; by default the network's own.

    Raises:
        DeepShareError: The text is not an input size.
    """
    if input_size is None:
        from deepshare import zoo

        return zoo.default_input_size(model)
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", input_size, re.ASCII)
    if match is None:
        raise DeepShareError(f"--input-size {input_size}: give channels, height and width, such as 3x32x32")
    channels, height, width = map(int, match.groups())
    return channels, height, width


def terminal_width() -> int | None:
    """Return the characters in a line of the terminal; None if the output goes elsewhere, where lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def check_writable(path: Path) -> None:
    """Check before any work that a file can be written.

    Raises:
        DeepShareError: It cannot; the message states the reason.
    """
    if path.is_dir():
        raise DeepShareError(f"cannot write {path}: it is a folder: give the name of a file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DeepShareError(
            f"cannot write {path}: {error.strerror}: give a file in a folder that exists and can be written"
        ) from error
