"""Steps in the ring: what there is to do, the same for every party."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.fixedpoint import Numbers
from deepshare.private.ir.patches import sums
from deepshare.private.ir.program import Convolution, Linear, Program

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """One step.

    Attributes:
        operation: Number of the operation that it belongs to.
        inputs: Numbers of the steps that it reads.
        shape: Shape of its result without the batch.
        scale: Fractional bits of its result.
    """

    operation: int
    inputs: tuple[int, ...]
    shape: Shape
    scale: int

    @property
    def elements(self) -> int:
        """Elements of its result for each image."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Take(Step):
    """The images."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """A linear layer in which every neuron is multiplied by a number; both tensors broadcast to the neurons.

    Attributes:
        weight: The numbers.
        bias: What is added.
    """

    weight: Tensor
    bias: Tensor


Layer = Convolution | Linear | Diagonal


@dataclass(frozen=True, eq=False)
class Product(Step):
    """The sum of linear layers: of each its number, see `Schedule.layer`, as many as inputs."""

    terms: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Shift(Step):
    """The result at a smaller scale.

    Attributes:
        by: How many bits are cut off.
        window: A share of the client that is nearer to zero may not be cut.
    """

    by: int
    window: int


@dataclass(frozen=True, eq=False)
class Sum(Step):
    """A sum of tensors, each first shifted up to the largest scale."""

    lifts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Join(Step):
    """Tensors one after the other along the channels, each first shifted up to the largest scale."""

    lifts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class View(Step):
    """The same elements in another shape."""


@dataclass(frozen=True, eq=False)
class Spread(Step):
    """Public numbers times maps: averages and interpolation."""

    resampling: Resampling
    factor: int


@dataclass(frozen=True, eq=False)
class Choice(Step):
    """The first tensor where the mask is set, the second elsewhere, each first shifted up to the largest scale."""

    mask: Tensor
    lifts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Opening(Step):
    """Tells both parties numbers less a mask that neither knows; the result is what they were.

    It waits for nobody: steps between it and the `Square` of these numbers share its way.

    Attributes:
        neurons: Shape of the numbers.
        where: Their places among all elements; None where they are all.
    """

    neurons: Shape
    where: Tensor | None

    @property
    def products(self) -> int:
        """Numbers for each image."""
        return math.prod(self.neurons)

    def picked(self, x: Tensor) -> Tensor:
        """The numbers that are opened."""
        return picked(x, self.where)


@dataclass(frozen=True, eq=False)
class Square(Step):
    """The squares of the numbers of an `Opening`, its input.

    Attributes:
        opening: That step.
        rounds: 1, or 0 where the client has been waited for since the last opening, by a `Gate` or another one.
    """

    opening: Opening
    rounds: int


@dataclass(frozen=True, eq=False)
class Place(Step):
    """Numbers at their places among all elements, and zeros elsewhere."""

    where: Tensor


@dataclass(frozen=True, eq=False)
class Gate(Step):
    """An activation: x gate, or x (alpha gate + beta) where it is affine.

    Attributes:
        leader: Number of the step that computes the gates.
        leads: Whether it is this one.
        neurons: Shape of what is multiplied by gates.
        prototypes: How many of the first channels of the neurons are compared.
        gates: Shape of the gates.
        bits: Bits of the numbers that are compared.
        pi: For each channel of the neurons its gate; None where each neuron has its own.
        cells: For each neuron that is compared, in order, its cell, whose sum is; None where each is alone.
        where: The neurons' places among all elements; None where they are all. The others pass.
        affine: Whether there are alpha and beta.
    """

    leader: int
    leads: bool
    neurons: Shape
    prototypes: int
    gates: Shape
    bits: int
    pi: Tensor | None
    cells: Tensor | None
    where: Tensor | None
    affine: bool

    @property
    def comparisons(self) -> int:
        """Gates that are computed here for each image."""
        return math.prod(self.gates) if self.leads else 0

    @property
    def products(self) -> int:
        """Neurons for each image."""
        return math.prod(self.neurons)

    def picked(self, x: Tensor) -> Tensor:
        """The neurons that have a gate."""
        return picked(x, self.where)

    def placed(self, x: Tensor, y: Tensor) -> Tensor:
        """The result, y where there are gates and x elsewhere."""
        if self.where is None:
            return y
        result = x.flatten(1).clone()
        result[:, self.where] = y
        return result.view(x.shape)

    def each(self, gates: Tensor) -> Tensor:
        """What belongs to the gates, for every neuron."""
        if self.cells is not None:
            gates = gates[:, self.cells].view(-1, self.prototypes, *self.neurons[1:])
        return gates if self.pi is None else gates[:, self.pi]

    def compared(self, neurons: Tensor) -> Tensor:
        """What is compared, (images * gates,)."""
        first = neurons[:, : self.prototypes]
        return (first if self.cells is None else sums(first, self.cells)).reshape(-1)

    def per_channel(self, values: Tensor) -> Tensor:
        """Alpha or beta, to be multiplied by neurons."""
        return values.view(-1, *[1] * (len(self.neurons) - 1))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps, each after those that it reads.

    Attributes:
        program: What they do; of an outline or whole.
        numbers: The number format.
        steps: The steps.
        output: Number of the step that gives the logits.
        diagonals: Linear layers that are no operations.
    """

    program: Program
    numbers: Numbers
    steps: tuple[Step, ...]
    output: int
    diagonals: tuple[Diagonal, ...] = ()

    @property
    def opened(self) -> tuple[int, ...]:
        """Numbers of the steps whose results are multiplied by weights."""
        return tuple(sorted({i for step in self.steps if isinstance(step, Product) for i in step.inputs}))

    @property
    def lost(self) -> float:
        """How many shares of an image fall into their windows, on average."""
        return sum(step.elements * 2 * step.window / 2**64 for step in self.steps if isinstance(step, Shift))

    def layer(self, term: int) -> Layer:
        """A linear layer: those that are operations are numbered as these are, the others after all operations."""
        operations = self.program.operations
        layer = operations[term] if term < len(operations) else self.diagonals[term - len(operations)]
        if not isinstance(layer, Layer):
            raise AssertionError(layer)
        return layer

    def name(self, number: int) -> str:
        """The layer that a step belongs to."""
        return self.program.operations[self.steps[number].operation].name

    def run(self, do: Callable[[int, Step, list[Tensor]], Tensor]) -> Tensor:
        """Do one step after the other, forget results that nobody reads any more, and give back the output."""
        last = {source: number for number, step in enumerate(self.steps) for source in step.inputs}
        last[self.output] = len(self.steps)
        values: dict[int, Tensor] = {}
        for number, step in enumerate(self.steps):
            values[number] = do(number, step, [values[source] for source in step.inputs])
            for source in set(step.inputs):
                if last[source] == number:
                    del values[source]
        return values[self.output]


def picked(x: Tensor, where: Tensor | None) -> Tensor:
    """Elements of each image by their places, or all as they are."""
    return x if where is None else x.flatten(1)[:, where]


def alone(step: Step, inputs: list[Tensor]) -> Tensor:
    """The steps that a party does on its own shares, all parties alike."""
    match step:
        case Sum(lifts=lifts):
            return (inputs[0] << lifts[0]) + (inputs[1] << lifts[1])
        case Join(lifts=lifts):
            return torch.cat([x << lift for x, lift in zip(inputs, lifts, strict=True)], 1)
        case Choice(mask=mask, lifts=lifts):
            return torch.where(mask, inputs[0] << lifts[0], inputs[1] << lifts[1])
        case Place(where=where, shape=shape):
            result = inputs[0].new_zeros(len(inputs[0]), step.elements)
            result[:, where] = inputs[0]
            return result.view(-1, *shape)
        case View(shape=shape):
            return inputs[0].reshape(-1, *shape)
        case Spread(resampling=resampling, factor=factor):
            result = resampling(inputs[0])
            return result if factor == 1 else result * factor
    raise AssertionError(step)
