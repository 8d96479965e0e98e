"""A program as steps in the ring, the same for every party: where numbers are cut back, and what is multiplied.

Numbers carry their scale. Products, gates and averages leave results at a larger one, and only where a step needs the
usual scale are they cut back; sums of two convolutions are one step, with one correction from the dealer.
"""

import math
from collections import Counter

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.cells import count_cells
from deepshare.private.gateshare.numbers import MARGIN, Numbers
from deepshare.private.gateshare.products import Resampling
from deepshare.private.gateshare.steps import Gate, Join, Product, Schedule, Shift, Spread, Step, Sum, Take, View
from deepshare.private.program import (
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
    made = Schedule(program, numbers, tuple(builder.steps), builder.at[len(program.operations) - 1])
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
        self.short: dict[int, int] = {}
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
        shape, sources = operation.shape, [self.at[source] for source in operation.inputs]
        match operation:
            case Add() | Concatenate():
                scale = max(self.steps[source].scale for source in sources)
                lifts = tuple(scale - self.steps[source].scale for source in sources)
                kind = Sum if isinstance(operation, Add) else Join
                self.put(number, kind(number, tuple(sources), shape, scale, lifts))
            case Reshape():
                self.put(number, View(number, (sources[0],), shape, self.steps[sources[0]].scale))
            case Resample():
                source = self.fraction(operation.inputs[0])
                resampling, factor, bits = _resampling(operation)
                self.put(number, Spread(number, (source,), shape, self.numbers.fraction + bits, resampling, factor))
            case SharedActivation():
                self.put(number, self.shared(number, operation))
            case GatedActivation():
                self.gated(number, operation)
            case Input():
                self.put(number, Take(number, (), shape, self.numbers.fraction))
            case _:
                raise AssertionError(operation)

    def put(self, number: int, step: Step) -> None:
        self.at[number] = len(self.steps)
        self.steps.append(step)

    def fraction(self, number: int) -> int:
        """The step that has the result of an operation at the scale of activations."""
        source = self.at[number]
        step = self.steps[source]
        if step.scale == self.numbers.fraction:
            return source
        if source not in self.short:
            by = step.scale - self.numbers.fraction
            window = 1 << (self.numbers.ranges[number] - MARGIN + by)
            self.short[source] = len(self.steps)
            self.steps.append(Shift(number, (source,), step.shape, self.numbers.fraction, by, window))
        return self.short[source]

    def shared(self, number: int, operation: SharedActivation) -> Gate:
        source = self.fraction(operation.inputs[0])
        leader = len(self.steps) if operation.leads else self.at[operation.leader]
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
            self.at[number] = self.at[operation.inputs[0]]
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
