"""A program as steps in the ring, the same for every party: where numbers are cut back, and what is multiplied.

Numbers carry their scale. Products, gates and averages leave results at a larger one, and only where a step needs the
usual scale are they cut back; sums of two convolutions are one step, with one correction from the dealer.
"""

import math
from collections import Counter

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.fixedpoint import MARGIN, SQUARED, Numbers
from deepshare.private.engines.gateshare.schedule import (
    Choice,
    Diagonal,
    Gate,
    Join,
    Opening,
    Place,
    Product,
    Schedule,
    Shift,
    Spread,
    Square,
    Step,
    Sum,
    Take,
    View,
)
from deepshare.private.ir.patches import count_cells
from deepshare.private.ir.program import (
    Add,
    Concatenate,
    Convolution,
    GatedActivation,
    Input,
    Linear,
    Operation,
    Program,
    Resample,
    Reshape,
    SharedActivation,
)

# Bits of a matrix of interpolation, and of one over the window of an average that is no power of two.
_MATRIX_BITS, _WINDOW_BITS = 11, 16
_MOST_LOST = 2.0


def schedule(program: Program, numbers: Numbers) -> Schedule:
    """Make the steps of a program that `limits.check` has seen.

    Raises:
        EngineError: Its numbers are so large and so many that hardly any shares of them could be cut back.
    """
    builder = _Builder(program, numbers)
    for number, operation in enumerate(program.operations):
        builder.add(number, operation)
    output = builder.result(len(program.operations) - 1)
    made = Schedule(program, numbers, tuple(builder.steps), output, tuple(builder.diagonals))
    if made.lost > _MOST_LOST:
        raise EngineError(
            f"of each image {made.lost:.1f} shares would fall where they cannot be used: take smaller images, or a "
            "network with smaller numbers"
        )
    return made


class _Builder:
    def __init__(self, program: Program, numbers: Numbers) -> None:
        self.numbers = numbers
        self.steps: list[Step] = []
        self.at: dict[int, int] = {}
        self.short: dict[tuple[int, int], int] = {}
        self.begun: dict[int, tuple[GatedActivation, int]] = {}
        self.diagonals: list[Diagonal] = []
        self.sums = _sums(program)
        joined = {i for number, terms in self.sums.items() if len(terms) > 1 for i in program.operations[number].inputs}
        self.products = {number: terms for number, terms in self.sums.items() if number not in joined}
        self.program = program

    def add(self, number: int, operation: Operation) -> None:
        if number in self.products:
            terms = self.products[number]
            sources = tuple(self.fraction(self.program.operations[term].inputs[0]) for term in terms)
            scale = self.numbers.fraction + self.numbers.weight
            self.put(number, Product(number, sources, operation.shape, scale, terms))
        elif number not in self.sums:
            self.other(number, operation)

    def other(self, number: int, operation: Operation) -> None:
        shape = operation.shape
        match operation:
            case Add() | Concatenate():
                sources = [self.result(source) for source in operation.inputs]
                scale = max(self.steps[source].scale for source in sources)
                lifts = tuple(scale - self.steps[source].scale for source in sources)
                kind = Sum if isinstance(operation, Add) else Join
                self.put(number, kind(number, tuple(sources), shape, scale, lifts))
            case Reshape():
                source = self.result(operation.inputs[0])
                self.put(number, View(number, (source,), shape, self.steps[source].scale))
            case Resample():
                source = self.fraction(operation.inputs[0])
                resampling, factor, bits = _resampling(operation)
                self.put(number, Spread(number, (source,), shape, self.numbers.fraction + bits, resampling, factor))
            case SharedActivation():
                self.put(number, self.shared(number, operation))
            case GatedActivation(square=None):
                self.gated(number, operation)
            case GatedActivation():
                self.curved(number, operation)
            case Input():
                self.put(number, Take(number, (), shape, self.numbers.fraction))
            case _:
                raise AssertionError(operation)

    def put(self, number: int, step: Step) -> None:
        self.at[number] = len(self.steps)
        self.steps.append(step)
        if isinstance(step, Gate):  # its answer brings those to all squares that are open
            for begun in tuple(self.begun):
                self.result(begun)

    def result(self, number: int) -> int:
        """The step that has the result of an operation, which is only now waited for if it was begun before."""
        if number in self.begun:
            self.polynomial(number, *self.begun.pop(number))
        return self.at[number]

    def fraction(self, number: int) -> int:
        """The step that has the result of an operation at the scale of activations."""
        return self.cut(number, self.result(number), self.numbers.fraction, self.numbers.ranges[number] - MARGIN)

    def cut(self, operation: int, source: int, scale: int, bits: int) -> int:
        """The step that has a result at a smaller scale; at that of activations it has at most so many bits."""
        step = self.steps[source]
        if step.scale == scale:
            return source
        if (source, scale) not in self.short:
            window = 1 << (bits + step.scale - self.numbers.fraction)
            self.short[source, scale] = len(self.steps)
            self.steps.append(Shift(operation, (source,), step.shape, scale, step.scale - scale, window))
        return self.short[source, scale]

    def shared(self, number: int, operation: SharedActivation) -> Gate:
        source = self.fraction(operation.inputs[0])
        leader = len(self.steps) if operation.leads else self.result(operation.leader)
        first, cells = operation.prototypes, operation.cells
        gates = (first, *operation.shape[1:]) if cells is None else (count_cells(cells),)
        bits = self.compared(operation.inputs[0], cells)
        shape, scale, pi = operation.shape, self.numbers.fraction + self.numbers.affine, operation.pi
        return Gate(
            number,
            (source,),
            shape,
            scale,
            leader=leader,
            leads=operation.leads,
            neurons=shape,
            prototypes=first,
            gates=gates,
            bits=bits,
            pi=pi,
            cells=cells,
            where=None,
            affine=True,
        )

    def compared(self, number: int, cells: Tensor | None) -> int:
        """Bits of the numbers that are compared: sums have more."""
        most = 1 if cells is None or not len(cells) else int(cells.bincount().max())
        return self.numbers.ranges[number] + (most - 1).bit_length()

    def gated(self, number: int, operation: GatedActivation) -> None:
        if not operation.gated:
            self.at[number] = self.result(operation.inputs[0])
            return
        source = self.fraction(operation.inputs[0])
        everywhere = operation.gated == operation.elements and operation.cells is None
        where = None if everywhere else operation.mask.flatten().nonzero().flatten()
        shape, cells = operation.shape if everywhere else (operation.gated,), operation.cells
        gates = shape if cells is None else (operation.comparisons,)
        bits, leader, whole = self.compared(operation.inputs[0], cells), len(self.steps), operation.shape
        gate = Gate(
            number,
            (source,),
            whole,
            self.numbers.fraction,
            leader=leader,
            leads=True,
            neurons=shape,
            prototypes=shape[0],
            gates=gates,
            bits=bits,
            pi=None,
            cells=cells,
            where=where,
            affine=False,
        )
        self.put(number, gate)

    def curved(self, number: int, operation: GatedActivation) -> None:
        """Begin polynomials, which end with the next gates or where their result is read, so that both go together."""
        if operation.gated == operation.elements:
            self.gated(number, operation)
            return
        x = self.fraction(operation.inputs[0])
        where = (~operation.mask).flatten().nonzero().flatten() if operation.gated else None
        source = self.cut(number, x, SQUARED, self.numbers.ranges[operation.inputs[0]] - MARGIN)
        neurons = operation.shape if where is None else (len(where),)
        self.begun[number] = operation, len(self.steps)
        self.steps.append(Opening(number, (source,), operation.shape, SQUARED, neurons, where))
        if operation.gated:
            self.gated(number, operation)

    def polynomial(self, number: int, operation: GatedActivation, begun: int) -> None:
        """End what `curved` began."""
        opening, x = self.steps[begun], self.fraction(operation.inputs[0])
        if not isinstance(opening, Opening) or operation.square is None or operation.linear is None:
            raise AssertionError(operation)
        last = next(step for step in reversed(self.steps) if isinstance(step, Gate | Opening | Square))
        rounds = int(isinstance(last, Opening))
        shape, scale = operation.shape, self.numbers.fraction + self.numbers.weight
        bits = 2 * (self.numbers.ranges[operation.inputs[0]] - MARGIN) - self.numbers.fraction
        self.steps.append(Square(number, (begun,), opening.neurons, 2 * opening.scale, opening, rounds))
        squares = self.cut(number, len(self.steps) - 1, self.numbers.fraction, bits)
        if opening.where is not None:
            self.steps.append(Place(number, (squares,), shape, self.numbers.fraction, opening.where))
            squares = len(self.steps) - 1
        terms = self.diagonal(operation.square, operation.constant), self.diagonal(operation.linear, None)
        gated = self.at.get(number)
        self.put(number, Product(number, (squares, x), shape, scale, terms))
        if gated is not None:
            lifts = scale - self.steps[gated].scale, 0
            self.put(number, Choice(number, (gated, self.at[number]), shape, scale, operation.mask, lifts))

    def diagonal(self, weight: Tensor, bias: Tensor | None) -> int:
        self.diagonals.append(Diagonal(weight, weight.new_zeros(()) if bias is None else bias))
        return len(self.program.operations) + len(self.diagonals) - 1


def _sums(program: Program) -> dict[int, tuple[int, ...]]:
    """For every linear layer itself, and for every sum that alone reads linear layers, all of these."""
    readers = Counter(source for operation in program.operations for source in operation.inputs)
    readers[len(program.operations) - 1] += 1
    sums: dict[int, tuple[int, ...]] = {}
    for number, operation in enumerate(program.operations):
        if isinstance(operation, Convolution | Linear):
            sums[number] = (number,)
        elif isinstance(operation, Add) and all(i in sums and readers[i] == 1 for i in operation.inputs):
            sums[number] = tuple(term for source in operation.inputs for term in sums[source])
    return sums


def _resampling(operation: Resample) -> tuple[Resampling, int, int]:
    """Whole numbers for it, a factor, and how many fractional bits they add."""
    (rows, first), (columns, second) = _whole(operation.rows), _whole(operation.columns)
    window = math.log2(1 / operation.scale)
    if window.is_integer():
        factor, third = 1, int(window)
    else:
        factor, third = round(operation.scale * 2**_WINDOW_BITS), _WINDOW_BITS
    return Resampling(rows, columns), factor, first + second + third


def _whole(matrix: Tensor) -> tuple[Tensor, int]:
    """A matrix in whole numbers, exactly where few bits will do."""
    for bits in range(_MATRIX_BITS):
        scaled = matrix * 2**bits
        if scaled.equal(scaled.round()):
            return scaled.long(), bits
    return (matrix * 2**_MATRIX_BITS).round().long(), _MATRIX_BITS
