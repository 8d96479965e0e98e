"""The activation with shared gates."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from deepshare.private.engines.crypten.comparison import DEALT_WORDS, comparison_cost
from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.fixed import truncate
from deepshare.private.engines.crypten.operations import SecureOperation, exchange
from deepshare.private.ir.patches import count_cells, sums
from deepshare.private.ir.program import Program, SharedActivation
from deepshare.private.runtime.engine import Part


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
