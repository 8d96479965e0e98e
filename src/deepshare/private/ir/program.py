"""A trained network as a list of operations that every engine knows, BatchNorm folded.

An operation names the operations whose results it reads by their numbers. Its hidden tensors are the server's secret;
all else (architecture, plan, masks) is public: `outline` is what the client is told.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from torch import Tensor

from deepshare.private.ir.patches import count_cells


@dataclass(frozen=True, eq=False)
class Operation:
    """One step.

    Attributes:
        name: Path of the module that does it in the network.
        inputs: Numbers of the operations that it reads.
        shape: Shape of its result without the batch: (C, H, W) or (C,).
        hidden: Names of the fields that are the server's secret.
    """

    hidden: ClassVar[tuple[str, ...]] = ()

    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Its name in tables and files."""
        return type(self).__name__

    @property
    def comparisons(self) -> int:
        """Comparisons for each image."""
        return 0

    @property
    def elements(self) -> int:
        """Elements of its result for each image."""
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Input(Operation):
    """The client's images."""


@dataclass(frozen=True, eq=False)
class Convolution(Operation):
    """A convolution (C_out, C_in / groups, kh, kw) with zeros around the map."""

    hidden = ("weight", "bias")

    weight: Tensor
    bias: Tensor
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Linear(Operation):
    """A fully connected layer (C_out, C_in)."""

    hidden = ("weight", "bias")

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class Resample(Operation):
    """scale * rows @ map @ columns^T for every channel: average pooling and interpolation, with public numbers.

    Pooling has zeros and ones in its matrices and one over the window as its scale; interpolation has scale 1.
    """

    rows: Tensor
    columns: Tensor
    scale: float


@dataclass(frozen=True, eq=False)
class MaxPool(Operation):
    """The largest value of each window; there are engines that refuse it."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def comparisons(self) -> int:
        """One less than the window, for each element."""
        return (prod(self.kernel) - 1) * self.elements


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """The sum of two tensors of one shape."""


@dataclass(frozen=True, eq=False)
class Concatenate(Operation):
    """Tensors one after the other along the channels."""


@dataclass(frozen=True, eq=False)
class Reshape(Operation):
    """The same elements in another shape."""


@dataclass(frozen=True, eq=False)
class SharedActivation(Operation):
    """y[c] = x[c] (alpha[c] gate[pi[c]] + beta[c]), with the gates of the first P channels of the leader's input.

    Attributes:
        leader: Number of the operation that computes the gates: itself for a leader.
        prototypes: P.
        pi: For each channel its prototype.
        alpha: One per channel.
        beta: One per channel.
        leads: Whether it is its own leader.
        cells: For each neuron of the prototypes, in order, its cell, whose sum is compared; None where each is alone.
    """

    hidden = ("alpha", "beta")

    leader: int
    prototypes: int
    pi: Tensor
    alpha: Tensor
    beta: Tensor
    leads: bool = True
    cells: Tensor | None = None

    @cached_property
    def comparisons(self) -> int:
        """The gates of a leader; a follower has none."""
        if not self.leads:
            return 0
        return self.prototypes * prod(self.shape[1:]) if self.cells is None else count_cells(self.cells)


@dataclass(frozen=True, eq=False)
class GatedActivation(Operation):
    """ReLU where the mask is set; elsewhere square x^2 + linear x + constant, or x itself where these are None.

    Attributes:
        mask: Booleans of the shape of x.
        square: Broadcasts to the shape of x; None for the identity, as are the others then.
        linear: The same.
        constant: The same.
        cells: For each neuron of the mask, in order, its cell, whose sum is compared; None where each is alone.
    """

    hidden = ("square", "linear", "constant")

    mask: Tensor
    square: Tensor | None = None
    linear: Tensor | None = None
    constant: Tensor | None = None
    cells: Tensor | None = None

    @cached_property
    def gated(self) -> int:
        """Neurons with a gate."""
        return int(self.mask.sum())

    @cached_property
    def comparisons(self) -> int:
        """One for each neuron of the mask, or for each cell."""
        return self.gated if self.cells is None else count_cells(self.cells)


OPERATIONS: tuple[type[Operation], ...] = (
    Input,
    Convolution,
    Linear,
    Resample,
    MaxPool,
    Add,
    Concatenate,
    Reshape,
    SharedActivation,
    GatedActivation,
)


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order, each after those that it reads; the first is the input, the last the output."""

    operations: tuple[Operation, ...]

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.operations[0].shape

    @property
    def comparisons(self) -> int:
        """Comparisons for each image."""
        return sum(operation.comparisons for operation in self.operations)

    def last_use(self) -> dict[int, int]:
        """For each operation the number of the last one that reads its result."""
        return {source: number for number, op in enumerate(self.operations) for source in op.inputs}

    def outline(self) -> "Program":
        """The program without the server's numbers: hidden tensors have their shape only."""
        return Program(tuple(_without_hidden(op) for op in self.operations))


ACTIVATIONS = frozenset({SharedActivation.__name__, GatedActivation.__name__})


def hidden_tensors(operation: Operation) -> dict[str, Tensor]:
    """The tensors of an operation that are the server's secret, by the name of their field."""
    values = {name: getattr(operation, name) for name in operation.hidden}
    return {name: value for name, value in values.items() if value is not None}


def _without_hidden(operation: Operation) -> Operation:
    shapes: dict[str, Any] = {name: value.to("meta") for name, value in hidden_tensors(operation).items()}
    return replace(operation, **shapes)
