"""Convolution as a matrix product: for every position of the kernel, the values under it in a row.

Channels come last within a row, so that rows are copied in long runs.
"""

from dataclasses import dataclass

from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over a map, as in torch.nn.Conv2d."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def positions(self, size: Pair, kernel: Pair) -> Pair:
        """How often the kernel fits into a map that has its padding: height and width of the result."""
        high, wide = (
            (s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(size, kernel, self.dilation, self.stride, strict=True)
        )
        return high, wide


def padded(x: Tensor, padding: Pair) -> Tensor:
    """Maps (N, C, H, W) with zeros around them and channels last: (N, H', W', C)."""
    (high, wide), (count, channels, height, width) = padding, x.shape
    out = x.new_zeros(count, height + 2 * high, width + 2 * wide, channels)
    out[:, high : high + height, wide : wide + width] = x.permute(0, 2, 3, 1)
    return out


def columns(planes: Tensor, kernel: Pair, geometry: Geometry) -> Tensor:
    """What the kernel sees of padded planes (L, N, H, W, C): (groups, L, N * positions, kh * kw * C / groups)."""
    limbs, count, height, width, channels = planes.shape
    high, wide = geometry.positions((height, width), kernel)
    each = channels // geometry.groups
    plane, image, row, column, _ = planes.stride()
    (down, right), (below, beside) = geometry.stride, geometry.dilation
    view = planes.as_strided(
        (geometry.groups, limbs, count, high, wide, *kernel, each),
        (each, plane, image, row * down, column * right, row * below, column * beside, 1),
    )
    return view.reshape(geometry.groups, limbs, count * high * wide, kernel[0] * kernel[1] * each)


def rows_of_kernels(weight: Tensor, groups: int) -> Tensor:
    """Kernels (O, C / groups, kh, kw) in the order of the columns: (groups, O / groups, kh * kw * C / groups)."""
    return weight.permute(0, 2, 3, 1).reshape(groups, weight.shape[0] // groups, -1)
