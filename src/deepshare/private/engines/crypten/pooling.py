"""Pooling and interpolation: public averages on each party's own shares, and maxima by comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.engines.crypten.comparison import DEALT_WORDS, comparison_cost
from deepshare.private.engines.crypten.fixed import BITS, LIMIT, divide, encode, truncate
from deepshare.private.engines.crypten.gated import ReLUs
from deepshare.private.engines.crypten.operation import SecureOperation
from deepshare.private.ir.program import MaxPool, Resample
from deepshare.private.runtime.engine import Part


class SecureResample(SecureOperation[Resample]):
    """Products with public matrices, done by each party alone."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Averages add first and divide once; other public numbers are rounded to fixed point."""
        (x,), (rows, columns, scale) = inputs, (self.operation.rows, self.operation.columns, self.operation.scale)
        divisor = round(1 / scale)
        if all(matrix.equal(matrix.round()) for matrix in (rows, columns)) and divisor * scale == 1:
            total = rows.long() @ x @ columns.long().T
            return total if divisor == 1 else divide(total, divisor)
        return truncate(truncate(encode(rows * scale) @ x) @ encode(columns).T)


class SecureMaxPool(SecureOperation[MaxPool]):
    """The largest value of each window, by a tournament: max(a, b) = b + ReLU(a - b).

    The padding around the map is smaller than any value.
    """

    def deal(self) -> None:
        """One ReLU for each pair."""
        size = (self.context.images, *self.operation.shape)
        self._levels = [ReLUs(self.context, (pairs, *size)) for pairs in matches(prod(self.operation.kernel))]

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
        (kh, kw), (sh, sw), (ph, pw) = self.operation.kernel, self.operation.stride, self.operation.padding
        # A public number is added to the first party's share alone.
        around = -int(LIMIT) << BITS if self.context.link.rank == 0 else 0
        padded = F.pad(x, (pw, pw, ph, ph), value=around)
        _, height, width = self.operation.shape
        ends = ((height - 1) * sh + 1, (width - 1) * sw + 1)
        return torch.stack(
            [padded[:, :, i : i + ends[0] : sh, j : j + ends[1] : sw] for i in range(kh) for j in range(kw)]
        )

    @staticmethod
    def online(operation: MaxPool, opened: int) -> Part:
        """The ReLUs of every level."""
        levels = [pairs * operation.elements for pairs in matches(prod(operation.kernel))]
        return sum((replace(comparison_cost(count, count), products=count) for count in levels), Part())

    @staticmethod
    def dealt(operation: MaxPool) -> int:
        """One product of masks for each ReLU."""
        return operation.comparisons * (DEALT_WORDS + 1)


def matches(window: int) -> list[int]:
    """Number of pairs in each level of a tournament.

    >>> matches(9)
    [4, 2, 1, 1]
    """
    levels = []
    while window > 1:
        levels.append(window // 2)
        window -= window // 2
    return levels
