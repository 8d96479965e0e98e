"""The largest value of each window, by a tournament: max(a, b) = b + ReLU(a - b)."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import BITS, LIMIT
from deepshare.private.engines.crypten.relu import Relus
from deepshare.private.engines.crypten.step import Step
from deepshare.private.engines.crypten.words import matches
from deepshare.private.ir.program import MaxPool, Program


class Largest(Step):
    """Max-pooling; what lies around the map is smaller than any value."""

    def __init__(self, room: Room, program: Program, number: int) -> None:
        super().__init__(room, program, number)
        operation = program.operations[number]
        if not isinstance(operation, MaxPool):
            raise TypeError(operation)
        self._pool = operation
        self._size = (room.images, *operation.shape)

    def deal(self) -> None:
        """One ReLU for each pair."""
        self._levels = [Relus(self.room, (pairs, *self._size)) for pairs in matches(prod(self._pool.kernel))]

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """One level after the other."""
        values = self._windows(inputs[0])
        for level in self._levels:
            pairs = len(values) // 2
            first, second, rest = values[:pairs], values[pairs : 2 * pairs], values[2 * pairs :]
            values = torch.cat([second + level.run(first - second)[0], rest])
        return values[0]

    def _windows(self, x: Tensor) -> Tensor:
        """The first value of every window, the second of every window and so on."""
        (kh, kw), (sh, sw), (ph, pw) = self._pool.kernel, self._pool.stride, self._pool.padding
        # A public number is added to the first party's share alone.
        around = -int(LIMIT) << BITS if self.room.link.rank == 0 else 0
        padded = F.pad(x, (pw, pw, ph, ph), value=around)
        height, width = self._size[2:]
        ends = ((height - 1) * sh + 1, (width - 1) * sw + 1)
        return torch.stack(
            [padded[:, :, i : i + ends[0] : sh, j : j + ends[1] : sw] for i in range(kh) for j in range(kw)]
        )
