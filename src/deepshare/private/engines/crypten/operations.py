"""Operations of the IR on secret shares: the interface, those that each party does alone, and products."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.fixed import BITS, WEIGHT_BITS, divide, encode, truncate
from deepshare.private.ir.program import Affine, Convolution, Multiply, Operation, Program, Resample, Weighted
from deepshare.private.runtime.outcome import Part

BYTES = 8

Op = TypeVar("Op", bound=Operation)


class SecureOperation(ABC, Generic[Op]):
    """One operation in one process; making it shares its secrets.

    Args:
        context: The process.
        program: The program.
        number: Number of the operation in it.

    Attributes:
        opens_input: Whether it opens its inputs, each once for all operations that read it.
    """

    opens_input: ClassVar[bool] = False

    def __init__(self, context: Context, program: Program, number: int) -> None:
        self.context, self.number = context, number
        self.operation: Op = program.operations[number]  # type: ignore[assignment]
        self.sizes = [program.operations[source].shape for source in self.operation.inputs]

    def deal(self) -> None:
        """Ask for the masks; in every process, before there are images."""

    def precompute(self) -> None:
        """Compute what depends on masks alone; in the parties, before there are images."""

    @abstractmethod
    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """This party's share of the result, from its shares of the inputs."""

    @staticmethod
    def online(operation: Op, opened: int) -> Part:
        """Bytes, rounds and counts that `run` measures for one image.

        Args:
            operation: The operation.
            opened: Numbers of its inputs that are opened with it: none if another operation has done so.
        """
        return Part()

    @staticmethod
    def dealt(operation: Op) -> int:
        """Words that a dealer sends for one image: products of masks, and what comparisons need."""
        return 0


def exchange(words: int, rounds: int = 1) -> Part:
    """The cost of `words` sent by each party; without any there is no round."""
    return Part(server_bytes=words * BYTES, client_bytes=words * BYTES, rounds=rounds if words else 0)


class Local(SecureOperation[Operation]):
    """An operation that each party does on its own shares, as in the clear: sums and copies."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """On the shares."""
        return self.operation.evaluate(inputs, {})


class SecureResample(SecureOperation[Resample]):
    """Products with public matrices, done by each party alone."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Averages add first and divide once; other public numbers are rounded to fixed point."""
        (x,), (rows, columns, scale) = inputs, (self.operation.rows, self.operation.columns, self.operation.scale)
        divisor = round(1 / scale)
        if all(matrix.equal(matrix.round()) for matrix in (rows, columns)) and divisor * scale == 1:
            total = rows.long() @ x @ columns.long().T
            return total if divisor == 1 else divide(total, divisor)
        return truncate(truncate(encode(rows * scale) @ x) @ encode(columns).T)


class SecureAffine(SecureOperation[Affine]):
    """scale x + shift with public numbers; whole scales are exact."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """The shift is added to the first party's share alone."""
        scale, shift = self.operation.scale, self.operation.shift
        x = inputs[0]
        y = x * int(scale) if scale == int(scale) else truncate(x * round(scale * 2**BITS))
        return y + round(shift * 2**BITS) if self.context.link.rank == 0 else y


class SecureLinear(SecureOperation[Weighted]):
    """x W + bias, where x = opened + mask and W is shared: opened W + (mask W + bias).

    The second part needs no image: mask W is a product of two masks, which is dealt, and of a mask with the opened W.
    """

    opens_input = True

    def __init__(self, context: Context, program: Program, number: int) -> None:
        super().__init__(context, program, number)
        operation = self.operation
        self._product, self._size = _product(operation), (context.images, *operation.shape)
        self._weight = context.secret(operation.weight, WEIGHT_BITS)
        bias = context.shared(operation.bias, BITS + WEIGHT_BITS)
        self._bias = bias.view(-1, *[1] * (len(operation.shape) - 1))

    def deal(self) -> None:
        """A mask for x, unless x is opened already, and its product with the weights' mask."""
        self._x = self.context.masked_value(self.operation.inputs[0], self.sizes[0])
        self._masks = self.context.triples.derived(
            self._size, lambda: self._product(self._x.mask.value, self._weight.mask.value)
        )

    def precompute(self) -> None:
        """mask W + bias."""
        self._rest = self._product(self._x.mask.share, self._weight.opened) + self._masks.share + self._bias

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Open x and multiply."""
        (opened,) = self.context.open_values(self.operation.inputs, inputs)
        return truncate(self._product(opened, self._weight.share) + self._rest, WEIGHT_BITS)

    @staticmethod
    def online(operation: Weighted, opened: int) -> Part:
        """The opening of x."""
        return exchange(opened)

    @staticmethod
    def dealt(operation: Weighted) -> int:
        """The product of both masks."""
        return operation.elements


def _product(operation: Weighted) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(operation, Convolution):
        options = {name: getattr(operation, name) for name in ("stride", "padding", "dilation", "groups")}
        return partial(torch.conv2d, **options)
    return lambda x, weight: x @ weight.T


class SecureMultiply(SecureOperation[Multiply]):
    """x y by a triple: with the masks a, b and opened e = x - a, f = y - b it is e y + f a + a b."""

    opens_input = True

    def deal(self) -> None:
        """Masks for both factors, unless they are opened already, and their product."""
        masked = [self.context.masked_value(*pair) for pair in zip(self.operation.inputs, self.sizes, strict=True)]
        self._a, b = (value.mask for value in masked)
        self._ab = self.context.triples.derived(
            (self.context.images, *self.operation.shape), lambda: self._a.value * b.value
        )

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Open both factors in one round."""
        e, f = self.context.open_values(self.operation.inputs, inputs)
        self.context.products += inputs[0].numel()
        return truncate(e * inputs[1] + f * self._a.share + self._ab.share)

    @staticmethod
    def online(operation: Multiply, opened: int) -> Part:
        """The opening of both."""
        return replace(exchange(opened), products=operation.elements)

    @staticmethod
    def dealt(operation: Multiply) -> int:
        """The product of both masks."""
        return operation.elements
