"""A trained network as a list of operations that every engine knows, BatchNorm folded.

An operation names the operations whose results it reads by their numbers. Its hidden tensors are the server's secret;
everything else (architecture, plan, masks) is public: the outline of a program is its public part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.ir.patches import count_cells, sums

Gates = dict[int, Tensor]
Shape = tuple[int, ...]  # without the batch
"""Open gates of an evaluation in the clear, by the number of their leader."""


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One operation.

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

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of all operations that it depends on."""
        return self.inputs

    def moved(self, numbers: Mapping[int, int]) -> Self:
        """The same operation, with new numbers for those that it reads."""
        return replace(self, inputs=tuple(numbers[source] for source in self.inputs))

    def check(self, number: int, operations: Sequence["Operation"]) -> None:
        """Check the structure that engines rely on, for an operation that another party described.

        Args:
            number: Its own number.
            operations: All operations of the program.

        Raises:
            ValueError: It reads later operations, or contradicts itself.
        """
        if not all(0 <= source < number for source in self.inputs) or (number == 0) != (not self.inputs):
            raise ValueError(f"operation {number} reads what is not there yet")

    @abstractmethod
    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """The result in the clear, in float64.

        Args:
            inputs: Results of the operations that it reads.
            gates: Gates of the leaders before; a leader adds its own.
        """


@dataclass(frozen=True, eq=False)
class Input(Operation):
    """The client's images."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """The images themselves."""
        return inputs[0]


@dataclass(frozen=True, eq=False)
class Weighted(Operation):
    """Weights and a bias: the common part of convolutions and fully connected layers."""

    hidden = ("weight", "bias")

    weight: Tensor
    bias: Tensor

    def scaled(self, scale: Tensor, shift: Tensor) -> Self:
        """The same followed by scale y + shift for each channel."""
        weight = self.weight * scale.view(-1, *[1] * (self.weight.dim() - 1))
        return replace(self, weight=weight, bias=self.bias * scale + shift)


@dataclass(frozen=True, eq=False)
class Convolution(Weighted):
    """A convolution (C_out, C_in / groups, kh, kw) with zeros around the map."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """torch's convolution."""
        return F.conv2d(inputs[0], self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@dataclass(frozen=True, eq=False)
class Linear(Weighted):
    """A fully connected layer (C_out, C_in)."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """x W^T + bias."""
        return F.linear(inputs[0], self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Norm(Operation):
    """x scale + shift for each channel. Folding removes it: programs have none.

    Attributes:
        scale: One per channel.
        shift: One per channel.
        public: Whether it is two numbers that the network's code states, the same for all channels.
    """

    scale: Tensor
    shift: Tensor
    public: bool = False

    def alone(self) -> "Weighted | Affine":
        """The same as a layer of its own: a 1x1 convolution with one group for each channel, unless it is public."""
        if self.public:
            return Affine(self.name, self.inputs, self.shape, float(self.scale[0]), float(self.shift[0]))
        if len(self.shape) == 1:
            return Linear(self.name, self.inputs, self.shape, torch.diag(self.scale), self.shift)
        weight = self.scale.view(-1, 1, 1, 1)
        return Convolution(self.name, self.inputs, self.shape, weight, self.shift, groups=len(weight))

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """As that layer."""
        return self.alone().evaluate(inputs, gates)


@dataclass(frozen=True, eq=False)
class Resample(Operation):
    """scale * rows @ map @ columns^T for every channel: average pooling and interpolation, with public numbers.

    Pooling has zeros and ones in its matrices and one over the window as its scale; interpolation has scale 1.
    """

    rows: Tensor
    columns: Tensor
    scale: float

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Two products of matrices."""
        return self.scale * (self.rows @ inputs[0] @ self.columns.T)


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """The sum of two tensors of one shape."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Their sum."""
        return inputs[0] + inputs[1]


@dataclass(frozen=True, eq=False)
class Subtract(Operation):
    """The difference of two tensors of one shape."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Their difference."""
        return inputs[0] - inputs[1]


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    """The product of two tensors that depend on the image, element by element; the second broadcasts to the first."""

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """The second broadcasts."""
        super().check(number, operations)
        first, second = (operations[source].shape for source in self.inputs)
        fits = len(first) == len(second) and all(b in (a, 1) for a, b in zip(first, second, strict=True))
        if not fits or first != self.shape:
            raise ValueError(f"operation {number} multiplies tensors of other shapes")

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Their product."""
        return inputs[0] * inputs[1]


@dataclass(frozen=True, eq=False)
class Affine(Operation):
    """scale x + shift with two public numbers, those that a network's code states."""

    scale: float
    shift: float

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """scale x + shift."""
        return self.scale * inputs[0] + self.shift


@dataclass(frozen=True, eq=False)
class Select(Operation):
    """Entries along one dimension, in any order and any number of times: slices, padding, repetition, flips.

    Attributes:
        dimension: Without the batch, counted from 0.
        index: For each entry of the result that of the input; -1 for zeros.
    """

    dimension: int
    index: Tensor

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """All entries are there."""
        super().check(number, operations)
        before, index = operations[self.inputs[0]].shape, self.index
        after = (*before[: self.dimension], len(index), *before[self.dimension + 1 :])
        if not 0 <= self.dimension < len(before) or self.shape != after or index.dtype != torch.int64:
            raise ValueError(f"operation {number} selects entries of another shape")
        if not len(index) or not -1 <= int(index.min()) <= int(index.max()) < before[self.dimension]:
            raise ValueError(f"operation {number} selects entries that are not there")

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """The entries."""
        return take(inputs[0], 1 + self.dimension, self.index)


def take(x: Tensor, dimension: int, index: Tensor) -> Tensor:
    """Entries of a tensor along a dimension; -1 gives zeros."""
    steps = index.diff()
    if int(index[0]) >= 0 and bool((steps == steps[:1]).all()) and (len(index) == 1 or int(steps[0]) > 0):
        places: list[slice] = [slice(None)] * x.dim()
        places[dimension] = slice(int(index[0]), int(index[-1]) + 1, int(steps[0]) if len(steps) else 1)
        return x[tuple(places)].contiguous()
    result = x.index_select(dimension, index.clamp(min=0))
    return result.index_fill(dimension, (index < 0).nonzero().flatten(), 0) if bool((index < 0).any()) else result


@dataclass(frozen=True, eq=False)
class Concatenate(Operation):
    """Tensors one after the other along the channels."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """One after the other."""
        return torch.cat(list(inputs), 1)


@dataclass(frozen=True, eq=False)
class Reshape(Operation):
    """The same elements in another shape."""

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """The same elements."""
        return inputs[0].reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class Permute(Operation):
    """The same elements with their dimensions in another order: transposition and, between reshapes, channel shuffle.

    Attributes:
        order: For each dimension of the result that of the input, without the batch, counted from 0.
    """

    order: tuple[int, ...]

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """Every dimension of the input comes once."""
        super().check(number, operations)
        before = operations[self.inputs[0]].shape
        if sorted(self.order) != list(range(len(before))) or self.shape != tuple(before[d] for d in self.order):
            raise ValueError(f"operation {number} is no order of dimensions")

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """torch's permutation."""
        return inputs[0].permute(0, *(1 + dimension for dimension in self.order)).contiguous()


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

    @property
    def sources(self) -> tuple[int, ...]:
        """Its input, and the leader of its group."""
        return (*self.inputs, self.leader)

    def moved(self, numbers: Mapping[int, int]) -> Self:
        """The leader moves too."""
        return replace(super().moved(numbers), leader=numbers[self.leader])

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """Leaders lead, and cells are those of the prototypes."""
        super().check(number, operations)
        leader = operations[self.leader] if 0 <= self.leader <= number else None
        if not isinstance(leader, SharedActivation) or not leader.leads or self.leads != (self.leader == number):
            raise ValueError(f"operation {number} follows no leader")
        _check_cells(self.cells, self.prototypes * prod(self.shape[1:]), number)

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """A leader compares first."""
        (x,) = inputs
        if self.leads:
            gates[self.leader] = _open(x[:, : self.prototypes], self.cells).to(x.dtype)
        spread = gates[self.leader][:, self.pi].reshape(x.shape)
        per_channel = (-1, *[1] * (x.dim() - 2))
        return x * (self.alpha.view(per_channel) * spread + self.beta.view(per_channel))


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

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """Cells are those of the neurons with a gate."""
        super().check(number, operations)
        _check_cells(self.cells, self.gated, number)

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Both parts, chosen by the mask."""
        (x,) = inputs
        otherwise = x
        if self.square is not None and self.linear is not None and self.constant is not None:
            otherwise = (self.square * x + self.linear) * x + self.constant
        if self.cells is None:
            return torch.where(self.mask, x.relu(), otherwise)
        where = self.mask.flatten().nonzero().flatten()
        neurons = x.flatten(1)[:, where]
        result = otherwise.flatten(1).clone()
        result[:, where] = neurons * _open(neurons, self.cells)
        return result.view(x.shape)


def _open(neurons: Tensor, cells: Tensor | None) -> Tensor:
    """The gate of each neuron."""
    if cells is None:
        return neurons >= 0
    return (sums(neurons, cells) >= 0)[:, cells].view(neurons.shape)


def _check_cells(cells: Tensor | None, neurons: int, number: int) -> None:
    """One for each neuron, numbered from 0 on without a gap."""
    if cells is None:
        return
    if len(cells) != neurons or (neurons and not 0 <= int(cells.min()) <= int(cells.max()) < neurons):
        raise ValueError(f"operation {number} has cells of other neurons")
    if neurons and not bool(cells.bincount().all()):
        raise ValueError(f"operation {number} has empty cells")


@dataclass(frozen=True, eq=False)
class TopClasses(Operation):
    """The channels with the largest scores, best first, instead of the scores: always the last operation.

    Attributes:
        classes: Number of channels to choose from.
    """

    classes: int

    @property
    def comparisons(self) -> int:
        """For each place one less than the channels that are left for it."""
        return sum(self.classes - place for place in range(1, self.shape[0] + 1)) * prod(self.shape[1:])

    def check(self, number: int, operations: Sequence[Operation]) -> None:
        """It reads scores of so many classes, and nothing reads it."""
        super().check(number, operations)
        before, (places, *rest) = operations[self.inputs[0]].shape, self.shape
        if before != (self.classes, *rest) or not 1 <= places <= self.classes or number + 1 != len(operations):
            raise ValueError(f"operation {number} is no choice of classes at the end")

    def evaluate(self, inputs: Sequence[Tensor], gates: Gates) -> Tensor:
        """Their numbers; of equal scores the first."""
        return inputs[0].sort(stable=True, dim=1, descending=True).indices[:, : self.shape[0]].to(inputs[0].dtype)


OPERATIONS: tuple[type[Operation], ...] = (
    Input,
    Convolution,
    Linear,
    Resample,
    Add,
    Subtract,
    Multiply,
    Affine,
    Select,
    Concatenate,
    Reshape,
    Permute,
    SharedActivation,
    GatedActivation,
    TopClasses,
)
"""Every operation of a program; each engine implements or refuses them all."""

ACTIVATIONS = frozenset({SharedActivation.__name__, GatedActivation.__name__})


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

    @property
    def classes(self) -> int:
        """Number of classes that it scores."""
        last = self.operations[-1]
        return last.classes if isinstance(last, TopClasses) else last.shape[0]

    @property
    def hides_scores(self) -> bool:
        """True if it gives classes alone, without their scores."""
        return isinstance(self.operations[-1], TopClasses)

    def finished(self) -> list[set[int]]:
        """For each operation the results that nobody reads after it."""
        last = {source: number for number, op in enumerate(self.operations) for source in op.inputs}
        return [{i for i in op.inputs if last[i] == number} for number, op in enumerate(self.operations)]

    def outline(self) -> "Program":
        """The program without the server's numbers: hidden tensors have their shape only."""
        return Program(tuple(_without_hidden(op) for op in self.operations))

    def evaluate(self, images: Tensor, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Run the program in the clear, in float64: the reference that every engine is measured against.

        Args:
            images: (N, C, H, W), as the network takes them.
            see: Called with the number and the result of each operation.
        """
        values: dict[int, Tensor] = {}
        gates: Gates = {}
        for number, (operation, finished) in enumerate(zip(self.operations, self.finished(), strict=True)):
            values[number] = operation.evaluate([values[i] for i in operation.inputs] or [images.double()], gates)
            if see is not None:
                see(number, values[number])
            for source in finished:
                del values[source]
        return values[len(self.operations) - 1]


def hidden_tensors(operation: Operation) -> dict[str, Tensor]:
    """The tensors of an operation that are the server's secret, by the name of their field."""
    values = {name: getattr(operation, name) for name in operation.hidden}
    return {name: value for name, value in values.items() if value is not None}


def _without_hidden(operation: Operation) -> Operation:
    shapes: dict[str, Any] = {name: value.to("meta") for name, value in hidden_tensors(operation).items()}
    return replace(operation, **shapes)
