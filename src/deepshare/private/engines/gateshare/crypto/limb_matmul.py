"""Exact products mod 2^64 with weights that are prepared once and used often.

torch multiplies int64 matrices fast only with AVX-512, where `WholeWeight` leaves it to torch, a panel of outputs at a
time. Small numbers are kept in 2 or 4 bytes and widened by panel: most weights come from memory, not from a cache.
Elsewhere float64 matrix products are some ten times as fast: one factor is cut into limbs, numbers of so few bits that
every sum of products of limbs is an integer of at most 2^53, which float64 holds exactly in whatever order it adds.
Sums that could become larger are cut along the inner dimension.

* `PlainWeight`, small numbers such as encoded weights, with x in two limbs of 32 bits: two products.
* `RingWeight`, any numbers mod 2^64 such as masked weights, both factors in three limbs of 22 bits: six products.

`plain_weight` and `ring_weight` choose. A convolution is such a product by im2col: for every position of the kernel,
the values under it in a row, channels last, so that rows are copied in long runs.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.parallel import CORES, in_parallel

Pair = tuple[int, int]

_EXACT = 1 << 53
_PLAIN = _EXACT >> 31  # what x in limbs of 32 bits leaves for a plain weight
_CHUNK = 5 << 16  # numbers in the columns of one part: they stay in the cache
# The least that is worth a part of its own, on another core or in the cache: as measured.
_FEWEST_POSITIONS, _FEWEST_OUTPUTS, _FEWEST_PRODUCTS = 32, 128, 1 << 20
_FEWEST_IN_CACHE = 64


_PANEL = 128  # outputs of a `WholeWeight` that are multiplied together: as measured

# Memory that a thread uses again, because the first write to a page takes long.
_REUSED = threading.local()


@dataclass(frozen=True)
class Geometry:
    """Stride, padding, dilation and groups, as in torch.nn.Conv2d."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def positions(self, size: Pair, kernel: Pair) -> Pair:
        """Height and width of the result, for a padded map."""
        high, wide = (
            (s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(size, kernel, self.dilation, self.stride, strict=True)
        )
        return high, wide


class Weight(ABC):
    """A matrix (O, C) or kernels (O, C / groups, kh, kw) of ring elements, ready to be multiplied.

    Args:
        weight: Ring elements.
        geometry: For kernels, how they move.

    Attributes:
        limbs: Numbers in whose place one number of x stands.
    """

    limbs: int

    def __init__(self, weight: Tensor, geometry: Geometry | None = None) -> None:
        self.geometry, self.outputs = geometry or Geometry(), len(weight)
        kernels = weight[..., None, None] if weight.dim() == 2 else weight
        self._is_matrix, self.kernel = weight.dim() == 2, (kernels.shape[2], kernels.shape[3])
        self._keep(rows_of_kernels(kernels, self.geometry.groups))

    @abstractmethod
    def _keep(self, rows: Tensor) -> None:
        """Keep rows (groups, O, K) in the form that is multiplied."""

    @abstractmethod
    def _fill_matrix(self, result: Tensor, x: Tensor, rows: slice, outputs: slice) -> None:
        """Do one part of a product with a matrix."""

    @abstractmethod
    def _fill(self, result: Tensor, maps: Tensor, images: slice, rows: slice, outputs: slice) -> None:
        """Do one part of a convolution."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product with x (N, C) or (N, C, H, W), mod 2^64."""
        return self._times_matrix(x) if self._is_matrix else self._convolve(x)

    def _times_matrix(self, x: Tensor) -> Tensor:
        rows, outputs = len(x), self.outputs
        result = x.new_empty(rows, outputs)
        cores = CORES if x.numel() * outputs >= _FEWEST_PRODUCTS else 1
        if rows > outputs:
            parts = [(some, slice(0, outputs)) for some in _slices(rows, -(-rows // cores))]
        else:
            each = max(-(-outputs // cores), _FEWEST_OUTPUTS)
            parts = [(slice(0, rows), some) for some in _slices(outputs, each)]
        in_parallel([partial(self._fill_matrix, result, x, *part) for part in parts])
        return result

    def _convolve(self, x: Tensor) -> Tensor:
        maps = _padded(x, self.geometry.padding)
        size = self.geometry.positions((maps.shape[1], maps.shape[2]), self.kernel)
        result = x.new_empty(len(x), self.outputs, *size)
        in_parallel([partial(self._fill, result, maps, *part) for part in self._parts(maps, size)])
        return result

    def _parts(self, maps: Tensor, size: Pair) -> Iterator[tuple[slice, slice, slice]]:
        """Cut a convolution into images, rows and outputs: a part for each core, more if columns would be too many."""
        (high, wide), images, outputs = size, len(maps), self.outputs
        a_row = wide * math.prod(self.kernel) * maps.shape[3]
        cores = CORES if images * high * a_row * outputs // self.geometry.groups >= _FEWEST_PRODUCTS else 1
        if cores > 1 and images * high * wide < 2 * _FEWEST_POSITIONS and self.geometry.groups == 1:
            each = max(-(-outputs // cores), _FEWEST_OUTPUTS)
            yield from ((slice(0, images), slice(0, high), some) for some in _slices(outputs, each))
            return
        rows = max(-(-images * high // cores), -(-_FEWEST_POSITIONS // wide))
        in_cache = max(_CHUNK // (self.limbs * a_row), -(-_FEWEST_IN_CACHE // wide))
        rows = -(-rows // -(-rows // in_cache))  # as many parts for each core
        for some in _slices(images, max(1, rows // high)):
            yield from ((some, band, slice(0, outputs)) for band in _slices(high, min(rows, high)))

    def _seen(self, rows: slice) -> slice:
        """Rows of the padded map under the kernel, for some rows of the result."""
        (down, _), (below, _) = self.geometry.stride, self.geometry.dilation
        return slice(rows.start * down, (rows.stop - 1) * down + (self.kernel[0] - 1) * below + 1)


def plain_weight(weight: Tensor, geometry: Geometry | None = None) -> Weight:
    """Prepare small numbers, of at most 22 bits: those of the server's own network.

    Raises:
        EngineError: Some are larger.
    """
    _check_plain(weight)
    return WholeWeight(weight, geometry) if whole_is_faster(geometry) else PlainWeight(weight, geometry)


def ring_weight(weight: Tensor, geometry: Geometry | None = None) -> Weight:
    """Prepare any ring elements: masks, masked weights."""
    return WholeWeight(weight, geometry) if whole_is_faster(geometry) else RingWeight(weight, geometry)


def whole_is_faster(geometry: Geometry | None = None) -> bool:
    """Whether torch's own products of int64 are faster than those of limbs; for many small matrices they never are."""
    fast = (
        torch.backends.cpu.get_cpu_capability() == "AVX512" and "fbgemm" in torch.backends.quantized.supported_engines
    )
    return fast and (geometry is None or geometry.groups == 1)


class WholeWeight(Weight):
    """Any ring elements of one group, in one limb. Takes 2, 4 or 8 bytes a number, as its largest one needs."""

    limbs = 1

    def _keep(self, rows: Tensor) -> None:
        # Panels (K, outputs): with few positions the weights as the first factor take four times as long.
        panels = rows[0].split(_PANEL)
        self._panels = [panel.to(_narrowest(rows)).T.clone(memory_format=torch.contiguous_format) for panel in panels]

    def _multiply(self, x: Tensor, outputs: slice, result: Tensor) -> None:
        """Write x (R, K) times some outputs into a result (R, some)."""
        for number, panel in enumerate(self._panels):
            first = number * _PANEL
            begin, end = max(first, outputs.start), min(first + panel.shape[1], outputs.stop)
            if begin < end:
                wide = panel if panel.dtype == torch.int64 else _copied(panel, "panel")
                into = result[:, begin - outputs.start : end - outputs.start]
                torch.mm(x, wide[:, begin - first : end - first], out=into)

    def _convolve(self, x: Tensor) -> Tensor:
        # As for all weights, but products are written where they belong, channels last, and transposed by image:
        # torch does that in blocks, if both sides are matrices without gaps.
        maps = _padded(x, self.geometry.padding)
        high, wide = self.geometry.positions((maps.shape[1], maps.shape[2]), self.kernel)
        products = x.new_empty(len(x), high, wide, self.outputs)
        in_parallel([partial(self._fill, products, maps, *part) for part in self._parts(maps, (high, wide))])
        result = x.new_empty(len(x), self.outputs, high, wide)
        for image, product in zip(result.flatten(2), products.flatten(1, 2), strict=True):
            image.copy_(product.T)
        return result

    def _fill(self, result: Tensor, maps: Tensor, images: slice, rows: slice, outputs: slice) -> None:
        seen = maps[images, self._seen(rows)]
        columns = _columns(seen[None], self.kernel, self.geometry, reuse=True)[0, 0]
        self._multiply(columns, outputs, result[images, rows, :, outputs].flatten(0, 2))

    def _fill_matrix(self, result: Tensor, x: Tensor, rows: slice, outputs: slice) -> None:
        self._multiply(x[rows], outputs, result[rows, outputs])


class LimbWeight(Weight):
    """Ring elements in float64."""

    @abstractmethod
    def _cut(self, rows: Tensor) -> Iterable[slice]:
        """Blocks of the inner dimension of rows (groups, O, K) within which sums stay exact."""

    @abstractmethod
    def _prepare(self, rows: Tensor) -> Tensor:
        """One block in the form that `_multiply` needs, (..., O, K)."""

    @abstractmethod
    def _split(self, x: Tensor) -> Tensor:
        """The limbs of x: (L, *x.shape)."""

    @abstractmethod
    def _multiply(self, block: Tensor, x: Tensor) -> Tensor:
        """A block times limbs (groups, L, R, K): ring elements (groups, O, R)."""

    def _keep(self, rows: Tensor) -> None:
        self._blocks = [(block, self._prepare(rows[..., block])) for block in self._cut(rows)]

    def _fill_matrix(self, result: Tensor, x: Tensor, rows: slice, outputs: slice) -> None:
        limbs = self._split(x[rows])[None]
        products = (self._multiply(block[..., outputs, :], limbs[..., where]) for where, block in self._blocks)
        result[rows, outputs] = reduce(Tensor.add_, products)[0].T

    def _fill(self, result: Tensor, maps: Tensor, images: slice, rows: slice, outputs: slice) -> None:
        part = result[images, outputs, rows]
        limbs = self._split(maps[images, self._seen(rows)])
        columns = _columns(limbs, self.kernel, self.geometry, reuse=True)
        products = (self._multiply(block[..., outputs, :], columns[..., where]) for where, block in self._blocks)
        apart = reduce(Tensor.add_, products).reshape(part.shape[1], part.shape[0], *part.shape[2:])
        part.copy_(apart.transpose(0, 1))


class PlainWeight(LimbWeight):
    """Small numbers, in float64."""

    limbs = 2

    def _cut(self, rows: Tensor) -> Iterable[slice]:
        _check_plain(rows)
        return _blocks_below(rows, _PLAIN)

    def _prepare(self, rows: Tensor) -> Tensor:
        return rows.double().contiguous()

    def _split(self, x: Tensor) -> Tensor:
        limbs = torch.empty(self.limbs, *x.shape, dtype=torch.float64)
        low = x.to(torch.int32)  # wraps: the low half as a signed number
        limbs[0] = low
        limbs[1] = (x - low) >> 32
        return limbs

    def _multiply(self, block: Tensor, x: Tensor) -> Tensor:
        low, high = _product(block, x).to(torch.int64).unbind(1)
        return low + (high << 32)


class RingWeight(LimbWeight):
    """Any ring elements, in float64. Takes 24 bytes a number."""

    limbs = 3

    def _cut(self, rows: Tensor) -> Iterable[slice]:
        # Limbs are of at most 2^21, the uppermost of 2^19; the largest sum is that of two products.
        block = _EXACT >> 43
        return (slice(begin, begin + block) for begin in range(0, rows.shape[2], block))

    def _prepare(self, rows: Tensor) -> Tensor:
        return self._split(rows)

    def _split(self, x: Tensor) -> Tensor:
        limbs = torch.empty(self.limbs, *x.shape, dtype=torch.float64)
        for limb in limbs:
            low = (x << 42) >> 42
            limb.copy_(low)
            x = (x - low) >> 22
        return limbs

    def _multiply(self, block: Tensor, x: Tensor) -> Tensor:
        # Only products whose place is below 2^64 count: with limbs 0, 1, 2 those of 0 + 0, 0 + 1, 1 + 0, 0 + 2, ...
        first = _product(block[0], x)
        second = _product(block[1], x[:, :2])
        third = _product(block[2], x[:, :1])
        middle = first[:, 1] + second[:, 0]
        upper = (first[:, 2] + second[:, 1]).add_(third[:, 0])
        return first[:, 0].to(torch.int64) + (middle.to(torch.int64) << 22) + (upper.to(torch.int64) << 44)


class Resampling:
    """rows @ map @ columns^T for every channel, with public integers: pooling and interpolation of shares."""

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        self._rows, self._columns = plain_weight(rows), plain_weight(columns)

    def __call__(self, x: Tensor) -> Tensor:
        """Resample maps (N, C, H, W), mod 2^64."""
        return _along_last(self._rows, _along_last(self._columns, x).mT).mT.contiguous()


def _along_last(weight: Weight, x: Tensor) -> Tensor:
    return weight(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def _product(weight: Tensor, x: Tensor) -> Tensor:
    """Weights (groups, O, K) times limbs (groups, L, R, K): (groups, L, O, R), whatever its strides."""
    groups, limbs, rows, width = x.shape
    flat = x.reshape(groups, limbs * rows, width)
    # The larger factor second: as measured with MKL.
    if limbs * rows > weight.shape[1]:
        return (weight @ flat.mT).view(groups, -1, limbs, rows).transpose(1, 2)
    return (flat @ weight.mT).view(groups, limbs, rows, -1).mT


def _check_plain(weight: Tensor) -> None:
    largest = max(-int(weight.min()), int(weight.max()))
    if largest > _PLAIN:
        raise EngineError(f"a weight of {largest} units is above {_PLAIN}: use fewer fractional bits")


def _blocks_below(rows: Tensor, limit: int) -> Iterator[slice]:
    """Cut (groups, O, K) along K so that no row's absolute sum within a block is above the limit, as no number is."""
    sums = rows.abs().flatten(0, 1).cumsum(1)
    begin, before = 0, sums.new_zeros(len(sums), 1)
    while begin < sums.shape[1]:
        end = begin + int(((sums[:, begin:] - before) <= limit).all(0).sum())
        yield slice(begin, end)
        begin, before = end, sums[:, end - 1 : end]


def convolution_columns(x: Tensor, kernel: Pair, geometry: Geometry) -> Tensor:
    """Values of maps (N, C, H, W) under the kernel: (groups, N * positions, kh * kw * C / groups)."""
    return _columns(_padded(x, geometry.padding)[None], kernel, geometry)[:, 0]


def _slices(count: int, each: int) -> Iterator[slice]:
    return (slice(begin, min(begin + each, count)) for begin in range(0, count, each))


def _padded(x: Tensor, padding: Pair) -> Tensor:
    """Maps (N, C, H, W) with zeros around them and channels last: (N, H', W', C)."""
    (high, wide), (count, channels, height, width) = padding, x.shape
    last = x.new_empty(count, height * width, channels)
    for one, image in zip(last, x.flatten(2), strict=True):
        one.copy_(image.T)  # torch transposes a whole matrix in blocks
    if not high and not wide:
        return last.view(count, height, width, channels)
    out = x.new_zeros(count, height + 2 * high, width + 2 * wide, channels)
    out[:, high : high + height, wide : wide + width] = last.view(count, height, width, channels)
    return out


def _columns(planes: Tensor, kernel: Pair, geometry: Geometry, reuse: bool = False) -> Tensor:
    """Values under the kernel in padded planes (L, N, H, W, C): (groups, L, N * positions, kh * kw * C / groups).

    If memory is reused they are good until the next call of this thread that reuses it.
    """
    limbs, count, height, width, channels = planes.shape
    high, wide = geometry.positions((height, width), kernel)
    each = channels // geometry.groups
    plane, image, row, column, _ = planes.stride()
    (down, right), (below, beside) = geometry.stride, geometry.dilation
    view = planes.as_strided(
        (geometry.groups, limbs, count, high, wide, *kernel, each),
        (each, plane, image, row * down, column * right, row * below, column * beside, 1),
    )
    whole = _copied(view, "columns") if reuse and not view.is_contiguous() else view
    return whole.reshape(geometry.groups, limbs, count * high * wide, kernel[0] * kernel[1] * each)


def _copied(view: Tensor, name: str) -> Tensor:
    """Copy numbers of at most 8 bytes, as numbers of 8 bytes without gaps, into memory that this thread reuses."""
    count, dtype = view.numel(), torch.float64 if view.is_floating_point() else torch.int64
    numbers: Tensor | None = getattr(_REUSED, name, None)
    if numbers is None or len(numbers) < count:
        numbers = torch.empty(count, dtype=torch.int64)
        setattr(_REUSED, name, numbers)
    return numbers[:count].view(dtype).view(view.shape).copy_(view)


def _narrowest(numbers: Tensor) -> torch.dtype:
    """The type of the fewest bytes that holds all numbers."""
    low, high = int(numbers.min()), int(numbers.max())
    kinds = (torch.int16, torch.int32)
    return next((kind for kind in kinds if torch.iinfo(kind).min <= low <= high <= torch.iinfo(kind).max), torch.int64)


def rows_of_kernels(weight: Tensor, groups: int) -> Tensor:
    """Kernels (O, C / groups, kh, kw) in the order of the columns: (groups, O / groups, kh * kw * C / groups)."""
    return weight.permute(0, 2, 3, 1).reshape(groups, weight.shape[0] // groups, -1)
