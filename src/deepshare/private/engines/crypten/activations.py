"""Activations on secret shares: with shared gates, and with gates of single neurons.

Neurons without a gate of their own, in the second kind, have a polynomial or pass unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from deepshare.private.engines.crypten.comparison import DEALT_WORDS, comparison_cost
from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.fixed import BITS, truncate
from deepshare.private.engines.crypten.operations import SecureOperation, exchange
from deepshare.private.ir.patches import count_cells, sums
from deepshare.private.ir.program import GatedActivation, Program, SharedActivation
from deepshare.private.runtime.outcome import Part


class SecureSharedActivation(SecureOperation[SharedActivation]):
    """y = x (alpha gate + beta), where gate = flip + (1 - 2 flip) bit is opened with the comparison, once for a group.

    With x = opened + mask: opened (alpha gate + beta) + mask alpha gate + mask beta. Of each of these the part that
    depends on the images is public, so the rest is dealt: one opening of x, no other.
    """

    opens_input = True

    def __init__(self, context: Context, program: Program, number: int) -> None:
        super().__init__(context, program, number)
        operation = self.operation
        self._size = (context.images, *operation.shape)
        self._first = (context.images, operation.prototypes, *operation.shape[1:])
        self._gate_size = self._first if operation.cells is None else (context.images, count_cells(operation.cells))
        per_channel = (-1, *[1] * (len(operation.shape) - 1))
        self._alpha = context.secret(operation.alpha.view(per_channel))
        self._beta = context.secret(operation.beta.view(per_channel))

    def deal(self) -> None:
        """A leader's comparisons, a mask for x, and the products of the masks of x, alpha, beta and the gates."""
        context, deal = self.context, partial(self.context.triples.derived, self._size)
        if self.operation.leads:
            context.gates[self.number] = context.deal_gates(self._gate_size)
        self._gates = context.gates[self.operation.leader]
        self._bit = bit = self._gates.bit.map(self._spread)
        self._x = x = context.masked_value(self.operation.inputs[0], self.sizes[0]).mask
        alpha, beta = self._alpha.mask, self._beta.mask
        self._x_alpha = deal(lambda: x.value * alpha.value)
        self._x_beta = deal(lambda: x.value * beta.value)
        self._x_bit = deal(lambda: x.value * bit.value)
        self._x_alpha_bit = deal(lambda: x.value * alpha.value * bit.value)
        self._alpha_bit = deal(lambda: alpha.value * bit.value)

    def precompute(self) -> None:
        """Replace the masks of alpha and beta by the numbers themselves in everything that was dealt."""
        alpha, beta = self._alpha.opened, self._beta.opened
        self._mask_alpha = alpha * self._x.share + self._x_alpha.share
        self._mask_beta = beta * self._x.share + self._x_beta.share
        self._mask_alpha_bit = alpha * self._x_bit.share + self._x_alpha_bit.share
        self._whole_alpha_bit = alpha * self._bit.share + self._alpha_bit.share

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Compare, if it leads; open x; multiply."""
        (x,), (number,) = inputs, self.operation.inputs
        opened = self._compare(x) if self.operation.leads else self.context.open_values([number], [x])[0]
        flip = self._spread(self._gates.seen())
        sign = 1 - 2 * flip
        self.context.products += 2 * x.numel()
        factor = flip * self._alpha.share + sign * self._whole_alpha_bit + self._beta.share
        rest = flip * self._mask_alpha + sign * self._mask_alpha_bit + self._mask_beta
        return truncate(opened * factor + rest)

    def _compare(self, x: Tensor) -> Tensor:
        (number,), cells = self.operation.inputs, self.operation.cells
        value = self.context.values[number]
        hidden = [x - value.mask.share] if value.opened is None else []
        first = x[:, : self.operation.prototypes]
        for opened in self.context.compare(self._gates, first if cells is None else sums(first, cells), hidden):
            value.opened = opened
        return self.context.open_values([number], [x])[0]

    def _spread(self, gates: Tensor) -> Tensor:
        cells = self.operation.cells
        first = gates if cells is None else gates[:, cells].view(self._first)
        return first[:, self.operation.pi].reshape(self._size)

    @staticmethod
    def online(operation: SharedActivation, opened: int) -> Part:
        """A leader's comparisons, and x opened with their last round; a follower opens x alone."""
        part = comparison_cost(operation.comparisons, opened) if operation.leads else exchange(opened)
        return replace(part, products=2 * operation.elements)

    @staticmethod
    def dealt(operation: SharedActivation) -> int:
        """Five products of masks for each element."""
        return operation.comparisons * DEALT_WORDS + 5 * operation.elements


class ReLUs:
    """ReLU of every number of a tensor, or their products with the gates of cells; made for one use."""

    def __init__(self, context: Context, size: Sequence[int], cells: Tensor | None = None) -> None:
        gates = size if cells is None else (size[0], count_cells(cells))
        self._context, self._cells, self._gates = context, cells, context.deal_gates(gates)
        self._mask = context.triples.fresh(size)
        self._bit = self._gates.bit.map(self._each)
        self._product = context.triples.derived(size, lambda: self._mask.value * self._bit.value)

    def run(self, x: Tensor, others: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """x gate = flip x + (1 - 2 flip) x bit; opens other shares in the same round as x."""
        compared = x if self._cells is None else sums(x, self._cells)
        opened, *rest = self._context.compare(self._gates, compared, [x - self._mask.share, *others])
        flip = self._each(self._gates.seen())
        self._context.products += x.numel()
        x_bit = opened * self._bit.share + self._product.share
        return flip * x + (1 - 2 * flip) * x_bit, rest

    def _each(self, gates: Tensor) -> Tensor:
        return gates if self._cells is None else gates[:, self._cells]


class Polynomial:
    """(square x + linear) x + constant, by Horner: a truncation between the two products keeps them in range."""

    def __init__(self, context: Context, operation: GatedActivation, index: Tensor) -> None:
        if operation.square is None or operation.linear is None or operation.constant is None:
            raise TypeError(operation)
        self._context, self._shape, self._index = context, operation.shape, index
        self._square = context.secret(operation.square)
        self._linear = self._gather(context.shared(operation.linear, 2 * BITS))
        self._constant = self._gather(context.shared(operation.constant, 2 * BITS))

    def deal(self) -> None:
        """Masks for x and for the bracket."""
        triples, size = self._context.triples, (self._context.images, len(self._index))
        self._x, self._inner = triples.fresh(size), triples.fresh(size)
        self._x_square = triples.derived(size, lambda: self._x.value * self._gather(self._square.mask.value))
        self._x_inner = triples.derived(size, lambda: self._x.value * self._inner.value)

    def precompute(self) -> None:
        """Replace the mask of the coefficient by the coefficient itself in what was dealt."""
        self._rest = self._x.share * self._gather(self._square.opened) + self._x_square.share + self._linear

    def hide(self, x: Tensor) -> Tensor:
        """The share of x to be opened before `run`."""
        return x - self._x.share

    def run(self, x: Tensor, opened: Tensor) -> Tensor:
        """Open the bracket and multiply it by x."""
        self._context.products += 2 * x.numel()
        inner = truncate(opened * self._gather(self._square.share) + self._rest)
        (bracket,) = self._context.link.open([inner - self._inner.share])
        return truncate(bracket * x + opened * self._inner.share + self._x_inner.share + self._constant)

    def _gather(self, coefficient: Tensor) -> Tensor:
        return coefficient.expand(self._shape).flatten()[self._index]


def count_polynomials(operation: GatedActivation) -> int:
    """Neurons with a polynomial."""
    return operation.elements - operation.gated if operation.square is not None else 0


class SecureGatedActivation(SecureOperation[GatedActivation]):
    """ReLU of the neurons with a gate, gathered into one vector; a polynomial of the others, or nothing at all."""

    def __init__(self, context: Context, program: Program, number: int) -> None:
        super().__init__(context, program, number)
        mask = self.operation.mask.flatten()
        self._gated, self._others = mask.nonzero().flatten(), (~mask).nonzero().flatten()
        some = count_polynomials(self.operation)
        self._polynomial = Polynomial(context, self.operation, self._others) if some else None

    def deal(self) -> None:
        """For both parts."""
        self._relus: ReLUs | None = None
        if len(self._gated):
            self._relus = ReLUs(self.context, (self.context.images, len(self._gated)), self.operation.cells)
        if self._polynomial is not None:
            self._polynomial.deal()

    def precompute(self) -> None:
        """For the polynomial."""
        if self._polynomial is not None:
            self._polynomial.precompute()

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Both parts; their first openings go in one round."""
        x = inputs[0].flatten(1)
        result = x.clone()
        others = x[:, self._others]
        hidden = [] if self._polynomial is None else [self._polynomial.hide(others)]
        if self._relus is not None:
            result[:, self._gated], opened = self._relus.run(x[:, self._gated], hidden)
        else:
            opened = self.context.link.open(hidden) if hidden else []
        if self._polynomial is not None:
            result[:, self._others] = self._polynomial.run(others, opened[0])
        return result.view(inputs[0].shape)

    @staticmethod
    def online(operation: GatedActivation, opened: int) -> Part:
        """The comparisons, both parts opened with their last round, and the bracket of the polynomial."""
        gates, gated, others = operation.comparisons, operation.gated, count_polynomials(operation)
        first = comparison_cost(gates, gated + others) if gates else exchange(others)
        return replace(first + exchange(others), products=gated + 2 * others)

    @staticmethod
    def dealt(operation: GatedActivation) -> int:
        """One product of masks for a ReLU, two for a polynomial."""
        return operation.comparisons * DEALT_WORDS + operation.gated + 2 * count_polynomials(operation)
