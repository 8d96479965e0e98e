"""Convolutions with a stride as convolutions without one, which take fewer bytes under encryption."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry
from deepshare.private.ir.program import Convolution, Shape


@dataclass(frozen=True)
class Phases:
    """A convolution with a stride as one without: position s j + r of a channel becomes position j of channel r.

    Maps are smaller, so more channels go into one polynomial, and positions that no kernel reads are left out.

    Attributes:
        takes: Channels, height and width.
        kernel: Height and width, odd.
        geometry: Without a stride.
        taps: For every place of the convolution's kernel the channel r and the place of this kernel.
        steps: s.
        read: The first position of each channel r.
    """

    takes: tuple[int, int, int]
    kernel: tuple[int, int]
    geometry: Geometry
    taps: dict[tuple[int, int], tuple[int, int, int]]
    steps: tuple[int, int]
    read: list[tuple[int, int]]

    @classmethod
    def of(cls, layer: Convolution, takes: Shape) -> Self | None:
        """None if there is no stride, or the result would have another size."""
        channels, *sides = takes
        places = list(zip(layer.weight.shape[2:], layer.stride, layer.padding, layer.dilation, strict=True))
        moved = [[divmod(k * d - p, s) for k in range(size)] for size, s, p, d in places]
        reach = [max(abs(whole) for whole, _ in one) for one in moved]
        halves = [-(-side // s) for side, s in zip(sides, layer.stride, strict=True)]
        results = [
            (side + 2 * p - d * (size - 1) - 1) // s + 1 for side, (size, s, p, d) in zip(sides, places, strict=True)
        ]
        if max(layer.stride) == 1 or results != halves:
            return None
        read = sorted({(down, right) for _, down in moved[0] for _, right in moved[1]})
        taps = {
            (row, column): (read.index((down, right)), below + reach[0], beside + reach[1])
            for row, (below, down) in enumerate(moved[0])
            for column, (beside, right) in enumerate(moved[1])
        }
        geometry = Geometry(padding=(reach[0], reach[1]), groups=layer.groups)
        kernel = (2 * reach[0] + 1, 2 * reach[1] + 1)
        down, right = layer.stride
        return cls((channels * len(read), halves[0], halves[1]), kernel, geometry, taps, (down, right), read)

    def split(self, maps: Tensor) -> Tensor:
        """Maps of the convolution (images, C, H, W) as maps of this one."""
        (down, right), (_, height, width) = self.steps, self.takes
        whole = functional.pad(maps, (0, right * width - maps.shape[3], 0, down * height - maps.shape[2]))
        parts = [whole[:, :, row::down, column::right] for row, column in self.read]
        return torch.stack(parts, 2).flatten(1, 2)

    def kernels(self, W: Tensor) -> Tensor:
        """Weights of the convolution (outputs, C, H, W) as weights of this one."""
        out = W.new_zeros(len(W), W.shape[1], len(self.read), *self.kernel)
        for (row, column), (channel, below, beside) in self.taps.items():
            out[:, :, channel, below, beside] = W[:, :, row, column]
        return out.flatten(1, 2)
