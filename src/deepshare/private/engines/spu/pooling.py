"""Pooling and interpolation: products with public matrices, and maxima by comparisons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import CostContext, Keep, Kernel, as_is, both
from deepshare.private.engines.spu.linear import Held, Window
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.ir.program import MaxPool, Resample
from deepshare.private.runtime.engine import Part

if TYPE_CHECKING:
    from jax import Array

# Around the map of a max-pool: below every value, and far enough within the range of fixed point to be compared.
LOWEST = -(2.0**20)


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
class MaxKernel(Kernel):
    """The largest value of each window."""

    window: Window

    @property
    def products(self) -> int:
        """One with each comparison."""
        return (prod(self.window.kernel) - 1) * self.elements

    @property
    def comparisons(self) -> int:
        """One less than the window, for each element."""
        return self.products

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """All pairs at once, until one of the window is left."""
        import jax.numpy as jnp

        values = jnp.stack(self.window.patches(inputs[0], self.shape, LOWEST))
        while len(values) > 1:
            half = len(values) // 2
            values = jnp.concatenate([jnp.maximum(values[:half], values[half : 2 * half]), values[2 * half :]])
        return values[0]

    def semi2k(self, context: CostContext) -> Part:
        """56 bytes to compare and 16 to select."""
        sizes = list(self._halvings(context))
        return both(72 * sum(sizes), 8 * len(sizes))

    def cheetah(self, context: CostContext) -> Part:
        """Comparisons and selections."""
        return sum((cheetah.comparison(size) + cheetah.selection(size) for size in self._halvings(context)), Part())

    def _halvings(self, context: CostContext) -> Iterator[int]:
        """Elements that are compared at once, until one of the window is left."""
        left = prod(self.window.kernel)
        while left > 1:
            yield left // 2 * self.elements * context.count
            left -= left // 2


def sums_only(matrix: "np.ndarray[Any, Any]") -> bool:
    """Whether every row of a matrix is zeros around a run of ones, so that a product with it is sums."""
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


def lower_max_pool(lowering: Lowering, number: int, operation: MaxPool) -> Held:
    """One kernel."""
    window = Window(operation.kernel, operation.stride, operation.padding)
    names = lowering.names(operation)
    return lowering.emit(
        MaxKernel(number=number, inputs=names, output=f"v{number}", shape=operation.shape, window=window)
    )
