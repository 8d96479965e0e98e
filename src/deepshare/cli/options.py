"""Arguments shared by several verbs."""

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deepshare.errors import DeepShareError

if TYPE_CHECKING:
    from torch import nn

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Model = Annotated[
    str,
    Parameter(
        help="resnet18, wrn22-8, deeplabv3-mobilenetv2, timm:NAME, torchvision:NAME or smp:ARCHITECTURE/ENCODER."
    ),
]
InputSize = Annotated[
    str | None,
    Parameter(metavar="CxHxW", help="Channels, height and width of one image; by default the network's own."),
]
Relu6ToRelu = Annotated[
    Flag, Parameter(help="Replace every ReLU6 by a ReLU first, so that its gate can be shared too.")
]
RunArgument = Annotated[Path, Parameter(help="Folder of a finished run, or a name that deepshare networks lists.")]
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON.")]


def build(model: str, *, relu6_to_relu: bool, **arguments: Any) -> "nn.Module":
    """Build a network by name, with random weights."""
    import deepshare

    built = deepshare.zoo.build(model, **arguments)
    return deepshare.relu6_to_relu(built) if relu6_to_relu else built


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
