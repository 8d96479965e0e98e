"""Gates, and the ReLU of single numbers."""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from deepshare.private.engines.crypten import comparison
from deepshare.private.engines.crypten.context import Gates, Room
from deepshare.private.ir.patches import count_cells, sums


def deal_gates(room: Room, size: Sequence[int]) -> Gates:
    """Ask for what gates of some size need."""
    signs = comparison.deal(room.source, prod(size))
    return Gates(signs, signs.bit.map(lambda bit: bit.view(tuple(size))))


def compare(room: Room, gates: Gates, x: Tensor, others: Sequence[Tensor]) -> list[Tensor]:
    """Compute the gates (x >= 0), and open other shares in the same round."""
    hidden = room.hidden_signs(x, gates.signs).view(x.shape)
    sign, *theirs = room.link.exchange([hidden, *others])
    gates.flip = 1 - (hidden ^ sign)
    return [mine + other for mine, other in zip(others, theirs, strict=True)]


class Relus:
    """ReLU of every number of a tensor of some size, or their products with the gates of cells; made for one use."""

    def __init__(self, room: Room, size: Sequence[int], cells: Tensor | None = None) -> None:
        gates = size if cells is None else (size[0], count_cells(cells))
        self._room, self._cells, self._gates = room, cells, deal_gates(room, gates)
        self._mask = room.source.fresh(size)
        self._bit = self._gates.bit.map(self._each)
        self._product = room.source.derived(size, lambda: self._mask.value * self._bit.value)

    def run(self, x: Tensor, others: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """x gate = flip x + (1 - 2 flip) x bit; opens other shares in the same round as x."""
        compared = x if self._cells is None else sums(x, self._cells)
        offset, *opened = compare(self._room, self._gates, compared, [x - self._mask.share, *others])
        flip = self._each(self._gates.seen())
        self._room.products += x.numel()
        x_bit = offset * self._bit.share + self._product.share
        return flip * x + (1 - 2 * flip) * x_bit, opened

    def _each(self, gates: Tensor) -> Tensor:
        return gates if self._cells is None else gates[:, self._cells]
