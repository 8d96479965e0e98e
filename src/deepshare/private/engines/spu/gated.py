"""The activation with gates of single neurons, and a polynomial or nothing elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import CostContext, Keep, Kernel, as_is, both, take
from deepshare.private.engines.spu.linear import Held
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.ir.program import GatedActivation, hidden_tensors
from deepshare.private.runtime.outcome import Part

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, eq=False, kw_only=True)
class GatedKernel(Kernel):
    """ReLU where there is a gate; elsewhere x, or (square x + linear) x + constant with hidden numbers for each neuron.

    Attributes:
        gates: Positions with a gate.
        others: Positions without.
    """

    gates: Tensor
    others: Tensor

    @property
    def products(self) -> int:
        """One at a gate, two in a polynomial."""
        return len(self.gates) + (2 * len(self.others) if self.hidden else 0)

    @property
    def comparisons(self) -> int:
        """One for each gate."""
        return len(self.gates)

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Both parts, gathered and put back."""
        (x,) = inputs
        gated, others = self._relu(x), take(x, self.others)
        if hidden:
            others = keep(others)
            others = (hidden["square"] * others + hidden["linear"]) * others + hidden["constant"]
        return self._place(gated, others).reshape(x.shape)

    def _relu(self, x: "Array") -> "Array":
        import jax.numpy as jnp

        gated = take(x, self.gates)
        return jnp.where(gated >= 0, gated, 0.0) if len(self.gates) else gated

    def _place(self, gated: "Array", others: "Array") -> "Array":
        """Values at the positions with a gate and those without, in the order of the map."""
        import jax.numpy as jnp

        order = np.argsort(np.concatenate([self.gates.numpy(), self.others.numpy()]))
        return take(jnp.concatenate([gated, others], 1), order)

    def semi2k(self, context: CostContext) -> Part:
        """56 bytes to compare and 16 to select; two products with truncations in a polynomial."""
        gates = both(72 * context.count * len(self.gates), 8) if len(self.gates) else Part()
        return gates + (both(32 * context.count * len(self.others), 4) if self.hidden else Part())

    def cheetah(self, context: CostContext) -> Part:
        """Comparisons and selections; in a polynomial a product with the server's numbers and one of two shares."""
        others = len(self.others) * context.count
        scaled = cheetah.scale(others) + cheetah.truncation(others) if self.hidden else Part()
        return self._compared(context) + scaled + self._squared(context)

    def _compared(self, context: CostContext) -> Part:
        gates = len(self.gates) * context.count
        return cheetah.comparison(gates) + cheetah.selection(gates) if gates else Part()

    def _squared(self, context: CostContext) -> Part:
        others = len(self.others) * context.count
        return context.triples.product(others) + cheetah.truncation(others) if self.hidden else Part()


@dataclass(frozen=True, eq=False, kw_only=True)
class PartsKernel(GatedKernel):
    """[ReLU where there is a gate, hidden `constant` elsewhere; 0 or x^2; 0 or x], for the next product to scale."""

    @property
    def products(self) -> int:
        """One at a gate, the square elsewhere."""
        return len(self.gates) + len(self.others)

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Three parts along the channels."""
        import jax.numpy as jnp

        (x,) = inputs
        gated, others = self._relu(x), take(x, self.others)
        places = ((gated, 0 * others), (0 * gated, others * others), (0 * gated, others))
        first, *rest = (self._place(*pair).reshape(x.shape) for pair in places)
        return jnp.concatenate([first + hidden["constant"], *rest], 1)

    def cheetah(self, context: CostContext) -> Part:
        """The scale is left to the next product."""
        return self._compared(context) + self._squared(context)


def lower_gated(lowering: Lowering, number: int, operation: GatedActivation) -> Held:
    """One kernel; where scales are absorbed and coefficients are those of channels, its parts are left apart."""
    mask, shape = operation.mask.reshape(-1), operation.shape
    gates, others = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    names = lowering.names(operation)
    hidden: dict[str, Tensor] = {}
    if len(others) and operation.square is not None and operation.linear is not None:
        scales = [_per_channel(c, shape) for c in (operation.square, operation.linear)]
        if lowering.absorbs and scales[0] is not None and scales[1] is not None:
            constant = hidden_tensors(operation)["constant"].expand(shape)
            kernel = PartsKernel(
                number=number,
                inputs=names,
                output=f"s{number}",
                shape=(3 * shape[0], *shape[1:]),
                hidden={"constant": constant * (~operation.mask).to(constant)},
                gates=gates,
                others=others,
            )
            lowering.emit(kernel)
            return lowering.apart(number, kernel.output, torch.cat([torch.ones_like(scales[0]), scales[0], scales[1]]))
        full = {name: value.expand(shape).reshape(-1) for name, value in hidden_tensors(operation).items()}
        hidden = {name: value[others] for name, value in full.items()}
    return lowering.emit(
        GatedKernel(
            number=number,
            inputs=names,
            output=f"v{number}",
            shape=shape,
            hidden=hidden,
            gates=gates,
            others=others,
        )
    )


def _per_channel(coefficient: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """One number for each channel, where there are no more."""
    if coefficient.dim() == len(shape) and all(size == 1 for size in coefficient.shape[1:]):
        return coefficient.reshape(-1).expand(shape[0])
    return None
