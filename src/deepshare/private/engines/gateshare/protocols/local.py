"""Steps for which nothing is dealt: images go in as shares, logits come out to the client alone, local maps between.

Input, x = x_S + x_C
    1. client             before the images: draws x_C from a seed of its own, which not even the dealer knows
    2. client -> server   with the images: x_S = x - x_C                                   8 bytes an element

Local maps, y = f(x)
    3. both               f(x_S) and f(x_C), each of its own share, for a linear f with public numbers; no message

Output, y = y_S + y_C
    4. server -> client   y_S + noise, Gaussian, of deviation 2^noise_bits / sqrt(3)          8 bytes a logit
    5. client             y + noise = (y_S + noise) + y_C

f(x) = f(x_S) + f(x_C) mod 2^64. Inputs of different scales are first shifted up to the largest one (`lifts`).

The noise hides what rounding, which depends on hidden values, tells about the weights. A logit beyond `LARGEST_LOGIT`
is an error. It is not asked again: a visible retry would tell the server something. Classes (`largest`) are exact, and
have no noise.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.crypto.ring import decode, encode, fresh_seed, mask
from deepshare.private.engines.gateshare.fixedpoint import LARGEST_LOGIT
from deepshare.private.engines.gateshare.lot import Batch, LotBatch
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    WORD,
    ClientOffline,
    ClientOnline,
    InTheClear,
    ProductTrial,
    ProtocolStep,
    ServerOffline,
    ServerOnline,
)
from deepshare.private.ir.program import (
    Add,
    Affine,
    Concatenate,
    Input,
    Permute,
    Resample,
    Reshape,
    Select,
    Shape,
    Subtract,
    take,
)
from deepshare.private.runtime.outcome import AnswerError, Part
from deepshare.private.transport.channel import Channel

# Bits of a matrix of interpolation, and of one over the window of an average that is no power of two.
_MATRIX_BITS, _WINDOW_BITS = 11, 16


@dataclass(frozen=True, eq=False)
class ClientInput(Batch):
    """Held by the client: its share of the images."""

    x_C: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class InputStep(ProtocolStep):
    """The images."""

    interactive = True

    def online_cost(self, images: int) -> Part:
        """Size of x_S."""
        return Part(client_bytes=WORD * images * self.elements)

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do step 1."""
        x_C = mask(at.seed, (at.lot.images, *self.shape))
        at.held[self.number] = ClientInput(x_C)
        return x_C

    def client_online(self, at: ClientOnline) -> None:
        """Do step 2."""
        mine: ClientInput = at.held[self.number]
        at.server.send(self.number, encode(at.images, self.scale) - mine.x_C)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 2."""
        return at.client.receive_numbers(self.number, (at.images, *self.shape))

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Encode the images."""
        return encode(at.images, self.scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalStep(ProtocolStep):
    """A linear map with public numbers."""

    @abstractmethod
    def apply(self, inputs: list[Tensor]) -> Tensor:
        """The map, of shares or of values."""

    def is_early(self, inputs: list[bool]) -> bool:
        """Return True if all inputs are."""
        return all(inputs)

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
class DifferenceStep(LocalStep):
    """The difference of two tensors."""

    lifts: tuple[int, ...]

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Subtract."""
        return (inputs[0] << self.lifts[0]) - (inputs[1] << self.lifts[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class AffineStep(LocalStep):
    """factor x + shift with public whole numbers.

    The shift is shared as shift - z and z, for a z that both parties know. So a client's share of exactly 0 is that of
    a 0, as of padding or of x - x, and may be truncated.
    """

    factor: int
    shift: int

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Multiply."""
        return inputs[0] if self.factor == 1 else inputs[0] * self.factor

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """The map of the client's share, with z."""
        return self.apply(inputs) + self._z(at.lot) if self.shift else self.apply(inputs)

    def server_offline(self, at: ServerOffline) -> None:
        """Expand z."""
        if self.shift:
            at.held[self.number] = self.shift - self._z(at.lot)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """The map of the server's share, with the rest of the shift."""
        return self.apply(inputs) + at.held[self.number] if self.shift else self.apply(inputs)

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """The map of the values."""
        return self.apply(inputs) + self.shift

    def _z(self, lot: LotBatch) -> Tensor:
        return lot.public_mask("shift", self.number, self.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class TakeStep(LocalStep):
    """Entries along one dimension, zeros where the index is -1."""

    dimension: int
    index: Tensor

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Take the entries."""
        return take(inputs[0], 1 + self.dimension, self.index)


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
    takes: Shape

    def product_trials(self) -> list[ProductTrial]:
        """Both parties' products, of their own shares."""
        key = (ResampleStep, self.takes, self.shape)
        return [ProductTrial(key, self.takes, lambda: (self.resampling, [self.resampling]))]

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


def lower_input(builder: ScheduleBuilder, operation: int, node: Input) -> None:
    """Add the step of the images."""
    number, scale = builder.next_number, builder.number_format.fraction
    step = InputStep(number=number, operation=operation, inputs=(), shape=node.shape, scale=scale)
    builder.append(step, result_of=operation)


def lower_add(builder: ScheduleBuilder, operation: int, node: Add) -> None:
    """Add the step of a sum."""
    inputs, scale, lifts = _lifted(builder, node.inputs)
    number = builder.next_number
    step = SumStep(number=number, operation=operation, inputs=inputs, shape=node.shape, scale=scale, lifts=lifts)
    builder.append(step, result_of=operation)


def lower_subtract(builder: ScheduleBuilder, operation: int, node: Subtract) -> None:
    """Add the step of a difference."""
    inputs, scale, lifts = _lifted(builder, node.inputs)
    number = builder.next_number
    step = DifferenceStep(number=number, operation=operation, inputs=inputs, shape=node.shape, scale=scale, lifts=lifts)
    builder.append(step, result_of=operation)


def lower_affine(builder: ScheduleBuilder, operation: int, node: Affine) -> None:
    """Add the step of a public affine map; only a factor that is no whole number adds fractional bits."""
    factor, bits = _factor(node.scale)
    source = builder.at_activation_scale(node.inputs[0]) if bits else builder.result(node.inputs[0])
    scale = builder.steps[source].scale + bits
    step = AffineStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=scale,
        factor=factor,
        shift=round(node.shift * 2**scale),
    )
    builder.append(step, result_of=operation)


def _factor(number: float) -> tuple[int, int]:
    """A public number as a whole one, and its fractional bits; exact where few bits will do."""
    for bits in range(_WINDOW_BITS):
        if (scaled := number * 2**bits).is_integer():
            return int(scaled), bits
    return round(number * 2**_WINDOW_BITS), _WINDOW_BITS


def lower_select(builder: ScheduleBuilder, operation: int, node: Select) -> None:
    """Add the step of a selection; several of them often read one tensor, which is truncated once before."""
    source = builder.at_activation_scale(node.inputs[0])
    step = TakeStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=builder.steps[source].scale,
        dimension=node.dimension,
        index=node.index,
    )
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
    factor, third = _factor(node.scale)
    step = ResampleStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=builder.number_format.fraction + first + second + third,
        resampling=Resampling(rows, columns),
        factor=factor,
        takes=builder.steps[source].shape,
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


def output_cost(step: ProtocolStep, images: int) -> Part:
    """Cost of revealing the result of a step."""
    return Part(server_bytes=WORD * images * step.elements, rounds=1)


def send_logits(step: ProtocolStep, y_S: Tensor, noise_bits: int | None, client: Channel) -> Tensor:
    """Do the server's part of the output, step 4; returns the noise."""
    noise = torch.zeros_like(y_S) if noise_bits is None else logit_noise(y_S.shape, noise_bits, step.scale)
    client.send(step.number, y_S + noise)
    return noise


def logit_noise(shape: Sequence[int], noise_bits: int, scale: int) -> Tensor:
    """Gaussian noise as ring elements, by the transform of Box and Muller.

    Noise with a bound would give more away: by the largest residual of a regression instead of the sum of squares.
    """
    words = (mask(fresh_seed(), (2, *shape)) >> 11) & ((1 << 53) - 1)
    first, second = (words.double() + 1) * 2.0**-53  # above 0, up to 1
    normal = (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()
    noise: Tensor = normal * (2.0 ** (noise_bits + scale) / math.sqrt(3))
    return noise.round().long()


def receive_logits(step: ProtocolStep, y_C: Tensor, server: Channel) -> Tensor:
    """Do the client's part of the output, step 5; returns ring elements."""
    return y_C + server.receive_numbers(step.number, tuple(y_C.shape))


def real_logits(logits: Tensor, scale: int) -> Tensor:
    """Decode logits.

    Raises:
        AnswerError: One is out of range.
    """
    values = decode(logits, scale)
    if not bool((values.abs() <= LARGEST_LOGIT).all()):
        raise AnswerError(f"a logit is beyond {LARGEST_LOGIT:g}: the network's scores are too large to be trusted")
    return values


def real_classes(numbers: Tensor, scale: int, classes: int) -> Tensor:
    """Decode numbers of classes.

    Raises:
        AnswerError: One is no class.
    """
    found = numbers >> scale
    if not torch.equal(found << scale, numbers) or not bool(((found >= 0) & (found < classes)).all()):
        raise AnswerError("the answer is no class of the network: the server does not follow the protocol")
    return found
