"""The activation with shared gates: the gates of a group once, and a selection or a scale for each of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import CostContext, Keep, Kernel, as_is, both
from deepshare.private.engines.spu.linear import Held
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.ir.program import SharedActivation
from deepshare.private.runtime.outcome import Part

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, eq=False, kw_only=True)
class GatesKernel(Kernel):
    """The gates of a group: whether each of the first channels is not negative.

    Attributes:
        columns: Where not 0, a matrix with so many columns, one for each prototype, and a row for each pixel.
    """

    columns: int = 0

    @property
    def comparisons(self) -> int:
        """One for each gate."""
        return self.elements

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Comparisons with zero."""
        import jax.numpy as jnp

        gates = inputs[0][:, : self.shape[0]] >= 0
        if not self.columns:
            return gates
        rows = jnp.moveaxis(gates, 1, -1).reshape(-1, self.shape[0])
        return jnp.concatenate([rows] * (self.columns // self.shape[0]), 1)

    def semi2k(self, context: CostContext) -> Part:
        """56 bytes a comparison, and one for each arithmetic share of a gate."""
        return both(context.count * self.elements * (56 + self.columns // self.shape[0]), 8)

    def cheetah(self, context: CostContext) -> Part:
        """The comparisons alone."""
        return cheetah.comparison(self.elements * context.count) + Part(rounds=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectKernel(Kernel):
    """[gate x; x], one after the other along the channels, for the next product to scale with alpha and beta."""

    pi: tuple[int, ...] = ()

    @property
    def products(self) -> int:
        """One for each element of x."""
        return self.elements // 2

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """x where its gate is open, and x."""
        import jax.numpy as jnp

        x, gate = inputs
        return jnp.concatenate([jnp.where(gate[:, np.array(self.pi)], x, 0.0), x], 1)

    def cheetah(self, context: CostContext) -> Part:
        """One selection for each element of x."""
        return cheetah.selection(self.products * context.count)


@dataclass(frozen=True, eq=False, kw_only=True)
class ScaleKernel(Kernel):
    """x (gate spread + beta), with hidden `spread` (P, C): alpha of each channel in the row of its prototype.

    Attributes:
        rows: P, but two where there is one prototype: its gate comes twice then, and the second row is zero.
    """

    rows: int

    @property
    def factors(self) -> tuple[str, ...]:
        """The matrix of alphas."""
        return ("spread",)

    @property
    def products(self) -> int:
        """One with the gate and one with x for each element."""
        return 2 * self.elements

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """The coefficient by a matrix product, then times x."""
        import jax.numpy as jnp

        x, gate = inputs
        coefficient = gate.astype(jnp.float32) @ hidden["spread"] + hidden["beta"]
        return x * jnp.moveaxis(coefficient.reshape(len(x), *self.shape[1:], self.shape[0]), -1, 1)

    def semi2k(self, context: CostContext) -> Part:
        """16 bytes to multiply and 4 to truncate; the gates are opened once for the whole group."""
        first = self.inputs[1] not in context.opened
        context.opened.add(self.inputs[1])
        opening = 8 * self.rows * prod(self.shape[1:]) * context.count if first else 0
        return both(20 * self.elements * context.count + opening, 2 + first)


def lower_shared(lowering: Lowering, number: int, operation: SharedActivation) -> Held:
    """A leader's gates, then a selection that leaves the scale pending, or the scale at once."""
    x = lowering.plain(operation.inputs[0])
    # The compiler turns a product of vectors into something more expensive than one of matrices.
    rows = 0 if lowering.absorbs else max(operation.prototypes, 2)
    if operation.leads:
        shape = (operation.prototypes, *operation.shape[1:])
        lowering.emit(GatesKernel(number=number, inputs=(x.name,), output=f"g{number}", shape=shape, columns=rows))
    inputs = (x.name, f"g{operation.leader}")
    if lowering.absorbs:
        shape = (2 * operation.shape[0], *operation.shape[1:])
        pi = tuple(operation.pi.tolist())
        lowering.emit(SelectKernel(number=number, inputs=inputs, output=f"s{number}", shape=shape, pi=pi))
        return lowering.apart(number, f"s{number}", torch.cat([operation.alpha, operation.beta]))
    chosen = torch.nn.functional.one_hot(operation.pi, rows).to(operation.alpha)
    spread = (chosen * operation.alpha[:, None]).T
    hidden = {"spread": spread, "beta": operation.beta}
    return lowering.emit(
        ScaleKernel(number=number, inputs=inputs, output=f"v{number}", shape=operation.shape, hidden=hidden, rows=rows)
    )
