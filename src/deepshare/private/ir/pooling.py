"""Pooling, means, sums along dimensions and interpolation as operations of a program."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.ir.arithmetic import best
from deepshare.private.ir.calls import Chain, IntOrPair, TracedCall, handles, pair
from deepshare.private.ir.layers import adaptive_windows, average, window_sums
from deepshare.private.ir.program import Add, Operation, Permute, Resample, Reshape

_MOST_TERMS = 64  # of a sum by additions; longer ones are products with ones


@handles("avg_pool2d")
def _avg_pool2d(
    call: TracedCall,
    input: Tensor,
    kernel_size: IntOrPair,
    stride: IntOrPair | None = None,
    padding: IntOrPair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Operation:
    kernel, pads = pair(kernel_size), pair(padding)
    steps = pair(stride) if stride else kernel
    windows = [
        [(o * s - p, o * s - p + k) for o in range(out)]
        for out, k, s, p in zip(call.shape[1:], kernel, steps, pads, strict=True)
    ]
    if divisor_override or (ceil_mode and count_include_pad and _overhang(windows, input, pads)):
        raise call.refuse(
            "average pooling with windows of unequal weight", "use count_include_pad=False and no divisor"
        )
    return average(call, input, windows[0], windows[1], count_outside=count_include_pad)


def _overhang(windows: list[list[tuple[int, int]]], input: Tensor, pads: tuple[int, int]) -> bool:
    sizes = input.shape[2:]
    return any(w[-1][1] > size + pad for w, size, pad in zip(windows, sizes, pads, strict=True))


@handles("avg_pool1d")
def _avg_pool1d(
    call: TracedCall,
    input: Tensor,
    kernel_size: IntOrPair,
    stride: IntOrPair | None = None,
    padding: IntOrPair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Chain:
    k, s, p = (pair(value)[0] for value in (kernel_size, stride or kernel_size, padding))
    windows = [(o * s - p, o * s - p + k) for o in range(call.shape[1])]
    if ceil_mode and count_include_pad and windows[-1][1] > input.shape[2] + p:
        raise call.refuse("average pooling with windows of unequal weight", "use count_include_pad=False")
    return _pool_rows(call, input, windows, count_include_pad)


@handles("adaptive_avg_pool1d")
def _adaptive_avg_pool1d(call: TracedCall, input: Tensor, output_size: Any) -> Chain:
    return _pool_rows(call, input, adaptive_windows(input.shape[2], call.shape[1]))


def _pool_rows(call: TracedCall, input: Tensor, windows: list[tuple[int, int]], count_outside: bool = False) -> Chain:
    """Averages along the only dimension of (N, C, L), as maps of height 1."""
    chain, (channels, length) = Chain(call), input.shape[1:]
    sums, sizes = window_sums(length, windows, count_outside)
    number = chain.add(Reshape, call.inputs, (channels, 1, length))
    one = torch.ones(1, 1, dtype=torch.float64)
    equal = len(set(sizes.tolist())) == 1
    means = sums if equal else sums / sizes[:, None]
    scale = 1 / float(sizes[0]) if equal else 1.0
    number = chain.add(Resample, [number], (channels, 1, len(windows)), one, means, scale)
    chain.add(Reshape, [number], call.shape)
    return chain


@handles("mean")
def _mean(call: TracedCall, input: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Operation | Chain:
    dims = _dims(call, input, dim)
    if input.dim() == 4 and dims == [2, 3]:
        return average(call, input, [(0, input.shape[2])], [(0, input.shape[3])])
    return _total(call, input, dims, 1 / math.prod(input.shape[d] for d in dims))


@handles("sum")
def _sum(call: TracedCall, input: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Chain:
    dims = _dims(call, input, dim)
    if len(dims) > 1 or input.shape[dims[0]] > _MOST_TERMS:
        return _total(call, input, dims, 1.0)
    (place,), chain = [d - 1 for d in dims], Chain(call)
    slab = [1 if d == place else size for d, size in enumerate(input.shape[1:])]
    parts = [chain.select(call.inputs[0], input.shape[1:], place, [entry]) for entry in range(input.shape[1 + place])]
    total = parts[0]
    for part in parts[1:]:
        total = chain.add(Add, [total, part], slab)
    chain.reshape(total, slab, call.shape)
    return chain


def _dims(call: TracedCall, input: Tensor, dim: Any) -> list[int]:
    dims = sorted(d % input.dim() for d in ([dim] if isinstance(dim, int) else dim or range(input.dim())))
    if 0 in dims:
        raise call.refuse("a mean or a sum across images", "give its dimensions, with the batch first")
    return dims


def _total(call: TracedCall, input: Tensor, dims: Sequence[int], scale: float) -> Chain:
    """Sums over some dimensions: moved to the end, they are a map of one row, which is pooled."""
    chain, sizes = Chain(call), input.shape[1:]
    order = [d for d in range(len(sizes)) if d + 1 not in dims] + [d - 1 for d in dims]
    number = call.inputs[0]
    if order != sorted(order):
        number = chain.add(Permute, [number], [sizes[d] for d in order], tuple(order))
    terms = math.prod(sizes[d - 1] for d in dims)
    maps = (sizes.numel() // terms, 1, terms)
    number = chain.reshape(number, [sizes[d] for d in order], maps)
    ones = torch.ones(1, terms, dtype=torch.float64)
    number = chain.add(Resample, [number], (maps[0], 1, 1), ones[:, :1], ones, scale)
    chain.reshape(number, (maps[0], 1, 1), call.shape)
    return chain


@handles("max_pool2d", "_max_pool2d", "max_pool2d_with_indices")
def _max_pool2d(
    call: TracedCall,
    input: Tensor,
    kernel_size: IntOrPair,
    stride: IntOrPair | None = None,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Chain:
    _check_pool(call, 3)
    kernel, pads, spread = pair(kernel_size), pair(padding), pair(dilation)
    options = zip(kernel, pair(stride) if stride else kernel, pads, spread, strict=True)
    sizes = zip(input.shape[2:], call.shape[1:], strict=True)
    return _pooled(call, input, [_windows(*ends, *one) for ends, one in zip(sizes, options, strict=True)])


@handles("max_pool1d", "max_pool1d_with_indices")
def _max_pool1d(
    call: TracedCall,
    input: Tensor,
    kernel_size: IntOrPair,
    stride: IntOrPair | None = None,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Chain:
    _check_pool(call, 2)
    options = (pair(value)[0] for value in (kernel_size, stride or kernel_size, padding, dilation))
    return _pooled(call, input, [_windows(input.shape[2], call.shape[1], *options)])


@handles("adaptive_max_pool2d")
def _adaptive_max_pool2d(call: TracedCall, input: Tensor, output_size: Any, return_indices: bool = False) -> Chain:
    _check_pool(call, 3)
    windows = []
    for size, out in zip(input.shape[2:], call.shape[1:], strict=True):
        first = torch.arange(out) * size // out
        last = -(-(torch.arange(out) + 1) * size // out) - 1
        # A window that is smaller than others has its last entry twice.
        windows.append([torch.minimum(first + j, last) for j in range(int((last - first).max()) + 1)])
    return _pooled(call, input, windows)


def _check_pool(call: TracedCall, dimensions: int) -> None:
    if call.shapes[1:] or len(call.shape) != dimensions:
        raise call.refuse("max-pooling with indices, or of no images", "pool (N, C, H, W) and return values only")


def _windows(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> list[Tensor]:
    """For each entry of a window its place, for all windows along a dimension.

    Beyond the edge a window has its nearest entry inside once more, which changes no maximum.
    """
    places = (torch.arange(kernel) * dilation)[:, None] + torch.arange(out) * stride - padding
    before, after = (-(outside // dilation).clamp(max=0) for outside in (places, size - 1 - places))
    return list(places + (before - after) * dilation)


def _pooled(call: TracedCall, input: Tensor, windows: Sequence[Sequence[Tensor]]) -> Chain:
    """The largest of each window: first along rows, whose maxima neighbouring windows share, then along columns."""
    chain, shape, x = Chain(call), list(input.shape[1:]), call.inputs[0]
    for axis in range(len(windows), 0, -1):
        before, largest = list(shape), None
        shape[axis] = call.shape[axis]
        for entries in windows[axis - 1]:
            entry = chain.select(x, before, axis, entries)
            largest = entry if largest is None else best(chain, largest, entry, shape)
        x = x if largest is None else largest
    return chain


@handles("interpolate")
def _interpolate(call: TracedCall, input: Tensor, *args: Any, **kwargs: Any) -> Operation:
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "nearest")
    if mode not in ("bilinear", "nearest", "nearest-exact") or kwargs.get("antialias"):
        raise call.refuse(f"interpolation {mode}", "use bilinear or nearest")
    # Both are separable: what they do to unit vectors along each axis is the whole of them.
    ratios = kwargs.get("scale_factor", args[1] if len(args) > 1 else None)
    factors = (ratios, ratios) if isinstance(ratios, int | float) or ratios is None else tuple(ratios)
    options = {
        "mode": mode,
        "align_corners": kwargs.get("align_corners", args[3] if len(args) > 3 else None),
        "recompute_scale_factor": kwargs.get("recompute_scale_factor"),
    }
    matrices = []
    for size, out, factor in zip(input.shape[2:], call.shape[1:], factors, strict=True):
        unit = torch.eye(size, dtype=torch.float64)[:, None, :, None]
        given = {"size": (out, 1)} if factor is None else {"scale_factor": (factor, 1.0)}
        matrices.append(F.interpolate(unit, **given, **options)[:, 0, :, 0].T.contiguous())
    return Resample(call.name, call.inputs, call.shape, matrices[0], matrices[1], 1.0)
