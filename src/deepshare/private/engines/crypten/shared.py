"""The activation with shared gates."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import truncate
from deepshare.private.engines.crypten.relu import compare, deal_gates
from deepshare.private.engines.crypten.step import Step
from deepshare.private.ir.patches import count_cells, sums
from deepshare.private.ir.program import Program, SharedActivation


class Shared(Step):
    """y = x (alpha gate + beta), where gate = flip + (1 - 2 flip) bit is opened with the comparison, once for a group.

    With x = offset + mask: offset (alpha gate + beta) + mask alpha gate + mask beta. Of each of these what depends on
    the images is public, so the rest is dealt: one opening of x, no other.
    """

    def __init__(self, room: Room, program: Program, number: int) -> None:
        super().__init__(room, program, number)
        operation = program.operations[number]
        if not isinstance(operation, SharedActivation):
            raise TypeError(operation)
        self._leader, self._leads, self._pi = operation.leader, operation.leads, operation.pi
        self._size = (room.images, *operation.shape)
        self._first, self._cells = (room.images, operation.prototypes, *operation.shape[1:]), operation.cells
        self._gate_size = self._first if self._cells is None else (room.images, count_cells(self._cells))
        per_channel = (-1, *[1] * (len(operation.shape) - 1))
        self._alpha = room.secret(operation.alpha.view(per_channel))
        self._beta = room.secret(operation.beta.view(per_channel))

    def deal(self) -> None:
        """A leader's comparisons, a mask for x, and the products of the masks of x, alpha, beta and the gates."""
        room, deal = self.room, partial(self.room.source.derived, self._size)
        if self._leads:
            room.gates[self.number] = deal_gates(room, self._gate_size)
        self._gates = room.gates[self._leader]
        self._bit = bit = self._gates.bit.map(self._spread)
        self._mask = x = room.opening(self.inputs[0], self.sizes[0]).mask
        alpha, beta = self._alpha.mask, self._beta.mask
        self._x_alpha = deal(lambda: x.value * alpha.value)
        self._x_beta = deal(lambda: x.value * beta.value)
        self._x_bit = deal(lambda: x.value * bit.value)
        self._x_alpha_bit = deal(lambda: x.value * alpha.value * bit.value)
        self._alpha_bit = deal(lambda: alpha.value * bit.value)

    def settle(self) -> None:
        """Put the opened alpha and beta into what was dealt for their masks."""
        alpha, beta = self._alpha.offset, self._beta.offset
        self._mask_alpha = alpha * self._mask.share + self._x_alpha.share
        self._mask_beta = beta * self._mask.share + self._x_beta.share
        self._mask_alpha_bit = alpha * self._x_bit.share + self._x_alpha_bit.share
        self._whole_alpha_bit = alpha * self._bit.share + self._alpha_bit.share

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Compare, if it leads; open x; multiply."""
        offset = self._compare(inputs[0]) if self._leads else self.room.open_value(self.inputs[0], inputs[0])
        flip = self._spread(self._gates.seen())
        sign = 1 - 2 * flip
        self.room.products += 2 * inputs[0].numel()
        factor = flip * self._alpha.share + sign * self._whole_alpha_bit + self._beta.share
        rest = flip * self._mask_alpha + sign * self._mask_alpha_bit + self._mask_beta
        return truncate(offset * factor + rest)

    def _compare(self, x: Tensor) -> Tensor:
        opening = self.room.openings[self.inputs[0]]
        hidden = [x - opening.mask.share] if opening.offset is None else []
        first = x[:, : self._first[1]]
        compared = first if self._cells is None else sums(first, self._cells)
        for offset in compare(self.room, self._gates, compared, hidden):
            opening.offset = offset
        return self.room.open_value(self.inputs[0], x)

    def _spread(self, gates: Tensor) -> Tensor:
        first = gates if self._cells is None else gates[:, self._cells].view(self._first)
        return first[:, self._pi].reshape(self._size)
