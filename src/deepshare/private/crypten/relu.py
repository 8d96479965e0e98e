"""Gates, and the ReLU of single numbers."""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from deepshare.private.crypten import comparison
from deepshare.private.crypten.room import Gates, Room


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
    """ReLU of every number of a tensor of some size; one is made for one use."""

    def __init__(self, room: Room, size: Sequence[int]) -> None:
        self._room, self._gates = room, deal_gates(room, size)
        self._mask = room.source.fresh(size)
        self._product = room.source.derived(size, lambda: self._mask.value * self._gates.bit.value)

    def run(self, x: Tensor, others: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """x gate = flip x + (1 - 2 flip) x bit; opens other shares in the same round as x."""
        offset, *opened = compare(self._room, self._gates, x, [x - self._mask.share, *others])
        flip = self._gates.seen()
        self._room.products += x.numel()
        x_bit = offset * self._gates.bit.share + self._product.share
        return flip * x + (1 - 2 * flip) * x_bit, opened
