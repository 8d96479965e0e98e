"""What the engine computes, one step after the other, with variables that the parties hold shares of.

A step belongs to the operation of the program whose cost it is. Its `hidden` tensors are the server's alone: in an
outline they have their shape only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One compiled function.

    Attributes:
        number: The operation that it is a part of.
        inputs: Variables that it reads.
        output: Variable that it writes.
        shape: Shape of that, without the batch.
        hidden: The server's tensors that it reads, by name.
    """

    number: int
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    hidden: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Elements of its result for each image."""
        return prod(self.shape)

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of the hidden matrices that are factors of products."""
        return ()

    @property
    def products(self) -> int:
        """Products of two hidden numbers at activations, for each image."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Share(Step):
    """The client's images, turned from hers alone into shares."""


@dataclass(frozen=True, eq=False)
class Window:
    """How a convolution reads its input; a fully connected layer reads all of it at once."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Product(Step):
    """A sum of convolutions as one matrix product: hidden `weight` (K, C_out), with `bias` and plain addends.

    The columns of the left factor are those of the first window by position and channel, then of the second, and so on.
    The first inputs have windows, the others are added as they are.
    """

    windows: tuple[Window, ...] = ()

    @property
    def factors(self) -> tuple[str, ...]:
        """The weights."""
        return ("weight",)

    @property
    def rows(self) -> int:
        """Rows of the left factor for each image."""
        return prod(self.shape[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Gates(Step):
    """The gates of a group: whether each of the first channels is not negative.

    Attributes:
        columns: Where not 0, a matrix with so many columns, one for each prototype, and a row for each place.
    """

    columns: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Select(Step):
    """[gate x; x], one after the other along the channels, for the next product to scale with alpha and beta."""

    pi: tuple[int, ...] = ()

    @property
    def products(self) -> int:
        """One for each element of x."""
        return self.elements // 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Scale(Step):
    """x (gate spread + beta), with hidden `spread` (P, C): alpha of each channel in the row of its prototype.

    Attributes:
        rows: P, but two where there is one prototype: its gate comes twice then, and the second row is zero.
    """

    rows: int

    @property
    def factors(self) -> tuple[str, ...]:
        """The matrix of alphas."""
        return ("spread",)

    @property
    def products(self) -> int:
        """One with the gate and one with x for each element."""
        return 2 * self.elements


@dataclass(frozen=True, eq=False, kw_only=True)
class Gated(Step):
    """ReLU where there is a gate; elsewhere x, or (square x + linear) x + constant with hidden numbers for each neuron.

    Attributes:
        gates: Positions with a gate.
        others: Positions without.
    """

    gates: Tensor
    others: Tensor

    @property
    def products(self) -> int:
        """One at a gate, two in a polynomial."""
        return len(self.gates) + (2 * len(self.others) if self.hidden else 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts(Gated):
    """[ReLU where there is a gate, hidden `constant` elsewhere; 0 or x^2; 0 or x], for the next product to scale."""

    @property
    def products(self) -> int:
        """One at a gate, the square elsewhere."""
        return len(self.gates) + len(self.others)


@dataclass(frozen=True, eq=False, kw_only=True)
class Resampled(Step):
    """scale * rows @ map @ columns^T with public numbers."""

    rows: Tensor
    columns: Tensor
    scale: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Largest(Step):
    """The largest value of each window."""

    window: Window

    @property
    def products(self) -> int:
        """One with each comparison."""
        return (prod(self.window.kernel) - 1) * self.elements


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Step):
    """The sum of two."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Step):
    """One after the other along the channels."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reshaped(Step):
    """The same elements in another shape."""


def sums_only(matrix: "np.ndarray[Any, Any]") -> bool:
    """Whether every row of a matrix is zeros around a run of ones, so that a product with it is sums."""
    whole = bool(((matrix == 0) | (matrix == 1)).all() and matrix.any(1).all())
    return whole and bool((np.count_nonzero(np.diff(matrix, prepend=0, append=0, axis=1), axis=1) == 2).all())
