"""Local steps: each party does them on its own shares, all alike; no message, nothing dealt.

For a linear map f with public numbers, f(x) = f(x_S) + f(x_C) mod 2^64. Inputs of different scales are first shifted up
to the largest one (`lifts`).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    ClientOffline,
    InTheClear,
    ProtocolStep,
    ServerOnline,
)
from deepshare.private.ir.program import Add, Concatenate, Permute, Resample, Reshape

# Bits of a matrix of interpolation, and of one over the window of an average that is no power of two.
_MATRIX_BITS, _WINDOW_BITS = 11, 16


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalStep(ProtocolStep):
    """A linear map with public numbers."""

    @abstractmethod
    def apply(self, inputs: list[Tensor]) -> Tensor:
        """The map, of shares or of values."""

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """The map of the client's shares."""
        return self.apply(inputs)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """The map of the server's shares."""
        return self.apply(inputs)

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """The map of the values."""
        return self.apply(inputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class SumStep(LocalStep):
    """The sum of two tensors."""

    lifts: tuple[int, ...]

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Add."""
        return (inputs[0] << self.lifts[0]) + (inputs[1] << self.lifts[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class ConcatStep(LocalStep):
    """Tensors one after the other along the channels."""

    lifts: tuple[int, ...]

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Concatenate."""
        return torch.cat([x << lift for x, lift in zip(inputs, self.lifts, strict=True)], 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class ReshapeStep(LocalStep):
    """The same elements in another shape."""

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Reshape."""
        return inputs[0].reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class PermuteStep(LocalStep):
    """The same elements with their dimensions in another order."""

    order: tuple[int, ...]

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Permute."""
        return inputs[0].permute(0, *(1 + dimension for dimension in self.order)).contiguous()


@dataclass(frozen=True, eq=False, kw_only=True)
class ResampleStep(LocalStep):
    """Averages and interpolation: maps times public whole numbers, which add fractional bits."""

    resampling: Resampling
    factor: int

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Resample."""
        result = self.resampling(inputs[0])
        return result if self.factor == 1 else result * self.factor


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectStep(LocalStep):
    """The first tensor where the mask is set, the second elsewhere."""

    mask: Tensor
    lifts: tuple[int, ...]

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Select."""
        return torch.where(self.mask, inputs[0] << self.lifts[0], inputs[1] << self.lifts[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class ScatterStep(LocalStep):
    """Numbers at their places among all elements, zeros elsewhere."""

    where: Tensor

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Scatter."""
        result = inputs[0].new_zeros(len(inputs[0]), self.elements)
        result[:, self.where] = inputs[0]
        return result.view(-1, *self.shape)


def lower_add(builder: ScheduleBuilder, operation: int, node: Add) -> None:
    """Add the step of a sum."""
    inputs, scale, lifts = _lifted(builder, node.inputs)
    number = builder.next_number
    step = SumStep(number=number, operation=operation, inputs=inputs, shape=node.shape, scale=scale, lifts=lifts)
    builder.append(step, result_of=operation)


def lower_concatenate(builder: ScheduleBuilder, operation: int, node: Concatenate) -> None:
    """Add the step of a concatenation."""
    inputs, scale, lifts = _lifted(builder, node.inputs)
    number = builder.next_number
    step = ConcatStep(number=number, operation=operation, inputs=inputs, shape=node.shape, scale=scale, lifts=lifts)
    builder.append(step, result_of=operation)


def lower_reshape(builder: ScheduleBuilder, operation: int, node: Reshape) -> None:
    """Add the step of a reshape."""
    source = builder.result(node.inputs[0])
    number, scale = builder.next_number, builder.steps[source].scale
    step = ReshapeStep(number=number, operation=operation, inputs=(source,), shape=node.shape, scale=scale)
    builder.append(step, result_of=operation)


def lower_permute(builder: ScheduleBuilder, operation: int, node: Permute) -> None:
    """Add the step of a permutation."""
    source = builder.result(node.inputs[0])
    number, scale = builder.next_number, builder.steps[source].scale
    step = PermuteStep(
        number=number, operation=operation, inputs=(source,), shape=node.shape, scale=scale, order=node.order
    )
    builder.append(step, result_of=operation)


def lower_resample(builder: ScheduleBuilder, operation: int, node: Resample) -> None:
    """Add the step of an average or an interpolation."""
    source = builder.at_activation_scale(node.inputs[0])
    (rows, first), (columns, second) = _whole(node.rows), _whole(node.columns)
    window = math.log2(1 / node.scale)
    if window.is_integer():
        factor, third = 1, int(window)
    else:
        factor, third = round(node.scale * 2**_WINDOW_BITS), _WINDOW_BITS
    step = ResampleStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=builder.number_format.fraction + first + second + third,
        resampling=Resampling(rows, columns),
        factor=factor,
    )
    builder.append(step, result_of=operation)


def _lifted(builder: ScheduleBuilder, operations: tuple[int, ...]) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Steps that have the results, their largest scale, and by how much each is shifted up to it."""
    sources = tuple(builder.result(operation) for operation in operations)
    scales = [builder.steps[source].scale for source in sources]
    return sources, max(scales), tuple(max(scales) - scale for scale in scales)


def _whole(matrix: Tensor) -> tuple[Tensor, int]:
    """A matrix in whole numbers and their fractional bits; exact where few bits will do."""
    for bits in range(_MATRIX_BITS):
        scaled = matrix * 2**bits
        if scaled.equal(scaled.round()):
            return scaled.long(), bits
    return (matrix * 2**_MATRIX_BITS).round().long(), _MATRIX_BITS
