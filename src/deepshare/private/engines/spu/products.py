"""Products with public numbers (average pooling, interpolation, affine maps), and of two shared tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import CostContext, Keep, Kernel, as_is, both
from deepshare.private.engines.spu.linear import Held
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.ir.program import Affine, Multiply, Resample
from deepshare.private.runtime.outcome import Part

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, eq=False, kw_only=True)
class ResampleKernel(Kernel):
    """scale * rows @ map @ columns^T with public numbers."""

    rows: Tensor
    columns: Tensor
    scale: float

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """One axis after the other, then the scale."""
        import jax.numpy as jnp

        x = _along_last(inputs[0], self.columns.numpy())
        x = jnp.swapaxes(_along_last(jnp.swapaxes(x, 2, 3), self.rows.numpy()), 2, 3)
        return x if self.scale == 1 else x * self.scale

    def semi2k(self, context: CostContext) -> Part:
        """4 bytes to truncate."""
        sizes = list(self._truncations(context))
        return both(4 * sum(sizes), len(sizes))

    def cheetah(self, context: CostContext) -> Part:
        """The truncations."""
        return sum((cheetah.truncation(size) for size in self._truncations(context)), Part())

    def _truncations(self, context: CostContext) -> Iterator[int]:
        """Elements of each truncation."""
        channels, height, _ = context.shapes[self.inputs[0]]
        if not sums_only(self.columns.numpy()):
            yield channels * height * len(self.columns) * context.count
        if not sums_only(self.rows.numpy()):
            yield self.elements * context.count
        if self.scale != 1:
            yield self.elements * context.count


@dataclass(frozen=True, eq=False, kw_only=True)
class AffineKernel(Kernel):
    """scale x + shift with public numbers; 1 and -1 need no product, which would be truncated."""

    scale: float
    shift: float

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Scale and shift."""
        (x,) = inputs
        y = x if self.scale == 1 else -x if self.scale == -1 else x * self.scale
        return y + self.shift if self.shift else y

    def semi2k(self, context: CostContext) -> Part:
        """4 bytes to truncate."""
        return both(4 * self.elements * context.count, 1) if self._truncates else Part()

    def cheetah(self, context: CostContext) -> Part:
        """The truncation."""
        return cheetah.truncation(self.elements * context.count) if self._truncates else Part()

    @property
    def _truncates(self) -> bool:
        return abs(self.scale) != 1


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiplyKernel(Kernel):
    """The product of two; the second broadcasts to the first."""

    @property
    def products(self) -> int:
        """One for each element."""
        return self.elements

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Their product."""
        return inputs[0] * inputs[1]

    def semi2k(self, context: CostContext) -> Part:
        """8 bytes to open each factor and 4 to truncate."""
        return both(20 * self.elements * context.count, 2)

    def cheetah(self, context: CostContext) -> Part:
        """A product of two shares, and its truncation."""
        size = self.elements * context.count
        return context.triples.product(size) + cheetah.truncation(size)


def sums_only(matrix: "np.ndarray[Any, Any]") -> bool:
    """Return True if every row of a matrix is zeros around a run of ones, so that a product with it is sums."""
    whole = bool(((matrix == 0) | (matrix == 1)).all() and matrix.any(1).all())
    return whole and bool((np.count_nonzero(np.diff(matrix, prepend=0, append=0, axis=1), axis=1) == 2).all())


def _along_last(x: "Array", matrix: "np.ndarray[Any, Any]") -> "Array":
    import jax.numpy as jnp

    if sums_only(matrix):
        # A product with constants would be truncated, even where they are zeros and ones.
        spans = [np.flatnonzero(row) for row in matrix]
        return jnp.stack([x[..., span[0] : span[-1] + 1].sum(-1) for span in spans], -1)
    return (x.reshape(-1, x.shape[-1]) @ jnp.asarray(matrix.T, jnp.float32)).reshape(*x.shape[:-1], -1)


def lower_resample(lowering: Lowering, number: int, operation: Resample) -> Held:
    """One kernel for all channels; a pending scale stays pending."""
    x = lowering.held(operation.inputs[0])
    kernel = ResampleKernel(
        number=number,
        inputs=(x.name,),
        output=f"v{number}",
        shape=(x.channels(operation.shape[0]), *operation.shape[1:]),
        rows=operation.rows,
        columns=operation.columns,
        scale=operation.scale,
    )
    return replace(x, name=lowering.emit(kernel).name, shape=operation.shape)


def lower_affine(lowering: Lowering, number: int, operation: Affine) -> Held:
    """One kernel, after a pending scale."""
    kernel = AffineKernel(
        number=number,
        inputs=lowering.names(operation),
        output=f"v{number}",
        shape=operation.shape,
        scale=operation.scale,
        shift=operation.shift,
    )
    return lowering.emit(kernel)


def lower_multiply(lowering: Lowering, number: int, operation: Multiply) -> Held:
    """One kernel, after pending scales."""
    names = lowering.names(operation)
    return lowering.emit(MultiplyKernel(number=number, inputs=names, output=f"v{number}", shape=operation.shape))
