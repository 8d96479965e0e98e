"""Products with public numbers, done by each party alone, and products of two shared tensors."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from deepshare.private.engines.crypten.fixed import BITS, divide, encode, truncate
from deepshare.private.engines.crypten.operation import SecureOperation, exchange
from deepshare.private.ir.program import Affine, Multiply, Resample
from deepshare.private.runtime.engine import Part


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
