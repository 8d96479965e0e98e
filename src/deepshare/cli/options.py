"""Options that several verbs take, and what is done with them."""

import re
import tempfile
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepshare.errors import DeepShareError

if TYPE_CHECKING:
    from torch import nn

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Network:
    """A network by name.

    Attributes:
        model: resnet18, wrn22-8, deeplabv3-mobilenetv2, timm:NAME, torchvision:NAME or smp:ARCHITECTURE/ENCODER.
        relu6_to_relu: Turn every ReLU6 into a ReLU first, so that its gate can be shared too.
    """

    model: str
    _: KW_ONLY
    relu6_to_relu: Flag = False

    def build(self, **arguments: int) -> "nn.Module":
        """Build the network, with random weights."""
        from deepshare import relu6_to_relu, zoo

        model = zoo.build(self.model, **arguments)
        return relu6_to_relu(model) if self.relu6_to_relu else model


@Parameter(name="*")
@dataclass(frozen=True)
class SizedNetwork(Network):
    """A network by name, and the size of its input.

    Attributes:
        input_size: Channels, height and width of one image; by default what the network is made for.
    """

    _: KW_ONLY
    input_size: Annotated[str | None, Parameter(metavar="CxHxW")] = None

    @property
    def size(self) -> tuple[int, int, int]:
        """The input size as numbers."""
        from deepshare import zoo

        if self.input_size is None:
            return zoo.default_input_size(self.model)
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", self.input_size, re.ASCII)
        if match is None:
            raise DeepShareError(f"--input-size {self.input_size}: give channels, height and width, such as 3x32x32")
        channels, height, width = map(int, match.groups())
        return channels, height, width


def check_writable(path: Path) -> None:
    """Find out before any work whether a file can be written.

    Raises:
        DeepShareError: Says what stands in the way.
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
