"""Layers, averages, interpolation and activation modules as operations of a program.

The first three are functions: see `calls` for their handlers in general. An activation module is one operation.
"""

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.methods.patches import PatchReLU
from deepshare.methods.snl import MaskedReLU
from deepshare.methods.square import Square
from deepshare.private.ir.arithmetic import IntOrPair, pair
from deepshare.private.ir.calls import Chain, Result, TracedCall, handles
from deepshare.private.ir.patches import cells_of_patches
from deepshare.private.ir.program import (
    Add,
    Convolution,
    GatedActivation,
    Linear,
    Operation,
    Permute,
    Resample,
    Reshape,
    SharedActivation,
)
from deepshare.sharing.gates import GateCell, GateModule, SharedReLU

_MOST_TERMS = 64  # of a sum by additions; longer ones are products with ones

Leaders = dict[GateCell, int]
"""For each group of gates the number of its leader."""


@handles("conv2d")
def _conv2d(
    call: TracedCall,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Operation:
    dilations = pair(dilation)
    if isinstance(padding, str):
        spans = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        if padding == "same" and any(span % 2 for span in spans):
            raise call.refuse("padding 'same' around an even kernel is not symmetric", "give the padding as numbers")
        padding = [span // 2 for span in spans] if padding == "same" else 0
    return Convolution(
        call.name,
        call.inputs,
        call.shape,
        weight.detach(),
        _bias(bias, weight),
        pair(stride),
        pair(padding),
        dilations,
        groups,
    )


@handles("linear")
def _linear(call: TracedCall, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Result:
    if len(call.shape) == 1:
        return Linear(call.name, call.inputs, call.shape, weight.detach(), _bias(bias, weight))
    # Features that come last: a 1x1 convolution, with all other dimensions as its map.
    chain, (outputs, inputs) = Chain(call), weight.shape
    places = input[0].numel() // inputs
    number = chain.reshape(call.inputs[0], input.shape[1:], (places, inputs))
    number = chain.add(Permute, [number], (inputs, places), (1, 0))
    number = chain.add(Reshape, [number], (inputs, places, 1))
    kernel = weight.detach()[:, :, None, None]
    number = chain.add(Convolution, [number], (outputs, places, 1), kernel, _bias(bias, weight))
    number = chain.add(Reshape, [number], (outputs, places))
    number = chain.add(Permute, [number], (places, outputs), (1, 0))
    chain.reshape(number, (places, outputs), call.shape)
    return chain


@handles("matmul", "__matmul__", "mm")
def _matmul(call: TracedCall, input: Tensor, other: Tensor) -> Result:
    if not call.depends(input) or other.dim() != 2:
        raise call.refuse("a product with a matrix from the left, or with several", "use x @ matrix, or nn.Linear")
    return _linear(call, input, other.detach().T.contiguous())


@handles("addmm")
def _addmm(call: TracedCall, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Result:
    if not call.depends(mat1) or input.dim() != 1:
        raise call.refuse("a product with a matrix from the left, or a matrix that is added", "use nn.Linear")
    return _linear(call, mat1, alpha * mat2.detach().T, beta * input.detach())


@handles("conv1d")
def _conv1d(
    call: TracedCall,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Chain:
    """A convolution of maps of height 1."""
    if isinstance(padding, str):
        raise call.refuse("a convolution along one dimension whose padding is a word", "give the padding as a number")
    chain = Chain(call)
    number = chain.add(Reshape, call.inputs, (input.shape[1], 1, input.shape[2]))
    step, pad, spread = (pair(value)[0] for value in (stride, padding, dilation))
    fields = weight.detach()[:, :, None], _bias(bias, weight), (1, step), (0, pad), (1, spread), groups
    number = chain.add(Convolution, [number], (call.shape[0], 1, call.shape[1]), *fields)
    chain.add(Reshape, [number], call.shape)
    return chain


@handles("conv_transpose2d")
def _conv_transpose2d(
    call: TracedCall,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    output_padding: IntOrPair = 0,
    groups: int = 1,
    dilation: IntOrPair = 1,
) -> Chain:
    """A convolution of the map with zeros between its entries, by the mirrored kernel."""
    chain, shape, source = Chain(call), list(input.shape[1:]), call.inputs[0]
    for axis, k, s, p, d in zip((1, 2), weight.shape[2:], pair(stride), pair(padding), pair(dilation), strict=True):
        first = p - d * (k - 1)
        places = range(first, first + call.shape[axis] + d * (k - 1))
        index = [i // s if i % s == 0 and 0 <= i // s < shape[axis] else -1 for i in places]
        source = chain.select(source, shape, axis, index)
        shape[axis] = len(index)
    inputs, outputs = weight.shape[:2]
    kernel = weight.detach().view(groups, inputs // groups, outputs, *weight.shape[2:]).transpose(1, 2)
    kernel = kernel.reshape(groups * outputs, inputs // groups, *weight.shape[2:]).flip((2, 3))
    fields = kernel, _bias(bias, kernel), (1, 1), (0, 0), pair(dilation), groups
    chain.add(Convolution, [source], call.shape, *fields)
    return chain


def _bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    return weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()


@handles("batch_norm")
def _batch_norm(
    call: TracedCall,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Chain:
    if running_mean is None or running_var is None or training:
        raise call.refuse("BatchNorm without running statistics", "use track_running_stats=True and train it")
    scale = (running_var + eps).rsqrt() * (1 if weight is None else weight.detach())
    shift = (0 if bias is None else bias.detach()) - running_mean * scale
    chain = Chain(call)
    chain.norm(call.inputs[0], call.shape, scale, shift)
    return chain


@handles("mean")
def _mean(call: TracedCall, input: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Operation | Chain:
    dims = _dims(call, input, dim)
    if input.dim() == 4 and dims == [2, 3]:
        return _pool(call, input, [(0, input.shape[2])], [(0, input.shape[3])])
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
    return _pool(call, input, windows[0], windows[1], count_outside=count_include_pad)


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
    return _pool_rows(call, input, _adaptive(input.shape[2], call.shape[1]))


def _pool_rows(call: TracedCall, input: Tensor, windows: list[tuple[int, int]], count_outside: bool = False) -> Chain:
    """Averages along the only dimension of (N, C, L), as maps of height 1."""
    chain, (channels, length) = Chain(call), input.shape[1:]
    sums, sizes = _windows(length, windows, count_outside)
    number = chain.add(Reshape, call.inputs, (channels, 1, length))
    one = torch.ones(1, 1, dtype=torch.float64)
    equal = len(set(sizes.tolist())) == 1
    means = sums if equal else sums / sizes[:, None]
    scale = 1 / float(sizes[0]) if equal else 1.0
    number = chain.add(Resample, [number], (channels, 1, len(windows)), one, means, scale)
    chain.add(Reshape, [number], call.shape)
    return chain


def _adaptive(size: int, out: int) -> list[tuple[int, int]]:
    return [(o * size // out, -(-(o + 1) * size // out)) for o in range(out)]


@handles("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(call: TracedCall, input: Tensor, output_size: Any) -> Operation:
    windows = [_adaptive(size, out) for size, out in zip(input.shape[2:], call.shape[1:], strict=True)]
    return _pool(call, input, windows[0], windows[1])


def _pool(
    call: TracedCall,
    input: Tensor,
    rows: list[tuple[int, int]],
    columns: list[tuple[int, int]],
    count_outside: bool = False,
) -> Operation:
    """Averages over windows; a window may reach beyond the map, where there are zeros."""
    sums, sizes = zip(
        *(_windows(size, w, count_outside) for size, w in zip(input.shape[2:], (rows, columns), strict=True)),
        strict=True,
    )
    if all(len(set(size.tolist())) == 1 for size in sizes):
        scale = 1 / (float(sizes[0][0]) * float(sizes[1][0]))
        return Resample(call.name, call.inputs, call.shape, sums[0], sums[1], scale)
    means = [total / size[:, None] for total, size in zip(sums, sizes, strict=True)]
    return Resample(call.name, call.inputs, call.shape, means[0], means[1], 1.0)


def _windows(size: int, windows: list[tuple[int, int]], count_outside: bool) -> tuple[Tensor, Tensor]:
    sums = torch.zeros(len(windows), size, dtype=torch.float64)
    for row, (first, last) in zip(sums, windows, strict=True):
        row[max(first, 0) : last] = 1
    counts = torch.tensor([last - first for first, last in windows]) if count_outside else sums.sum(1)
    return sums, counts.double()


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


@singledispatch
def activation(module: nn.Module, call: TracedCall, leaders: Leaders) -> Operation:
    """The operation of an activation module; one function is registered for each class.

    Args:
        module: A module for which `is_leaf` holds.
        call: Its call.
        leaders: The leaders so far; a leader enters itself.

    Raises:
        UnsupportedModelError: No engine knows it, or its training is not finished.
    """
    raise call.refuse(f"{type(module).__name__}, which no engine knows", "take a method of deepshare's own")


def is_leaf(module: nn.Module) -> bool:
    """Whether a module becomes one operation, without a look inside."""
    return isinstance(module, GateModule) or activation.dispatch(type(module)) is not activation.dispatch(object)


@activation.register
def _shared(module: SharedReLU, call: TracedCall, leaders: Leaders) -> Operation:
    if module.cell.phase != "hard":
        raise call.refuse("its gates are not all hard", "finish the switch")
    module.check_map(call.name, call.shape[1:])
    if module.position == 0:
        leaders[module.cell] = call.number
    if module.plain:
        return GatedActivation(call.name, call.inputs, call.shape, torch.ones(call.shape, dtype=torch.bool))
    return SharedActivation(
        call.name,
        call.inputs,
        call.shape,
        leaders[module.cell],
        module.prototypes,
        module.pi.clone(),
        module.alpha.detach().double(),
        module.beta.detach().double(),
        module.position == 0,
        _cells(torch.full((module.prototypes, 2), module.patch), call) if module.patch > 1 else None,
    )


@activation.register
def _masked(module: MaskedReLU, call: TracedCall, leaders: Leaders) -> Operation:
    if not bool(((module.mask == 0) | (module.mask == 1)).all()):
        raise call.refuse("its masks are still between 0 and 1", "finish its training, which makes them binary")
    return GatedActivation(call.name, call.inputs, call.shape, module.mask.bool().reshape(call.shape))


@activation.register
def _patched(module: PatchReLU, call: TracedCall, leaders: Leaders) -> Operation:
    """Channels without a gate pass; of the others the patches are cells."""
    gated = (module.patches > 0).all(1)
    mask = gated.view(-1, *[1] * (len(call.shape) - 1)).expand(call.shape)
    return GatedActivation(
        call.name, call.inputs, call.shape, mask.contiguous(), cells=_cells(module.patches[gated], call)
    )


def _cells(patches: Tensor, call: TracedCall) -> Tensor:
    height, width = call.shape[1:] if len(call.shape) == 3 else (1, 1)
    return cells_of_patches(patches, height, width)


@activation.register
def _polynomial(module: GatedPolynomial, call: TracedCall, leaders: Leaders) -> Operation:
    mask = module.mask.reshape(call.shape)
    values = (value.detach().double() for value in module.factors())
    square, linear, constant = (value.view(value.shape[: len(call.shape)]) for value in values)  # of vectors, too
    if bool((square == 0).all() and (linear == 1).all() and (constant == 0).all()):
        return GatedActivation(call.name, call.inputs, call.shape, mask)
    return GatedActivation(call.name, call.inputs, call.shape, mask, square, linear, constant)


@activation.register
def _square(module: Square, call: TracedCall, leaders: Leaders) -> Operation:
    factor = module.factor().detach().double().view(-1, *[1] * (len(call.shape) - 1))
    mask, zero = torch.zeros(call.shape, dtype=torch.bool), torch.zeros_like(factor)
    return GatedActivation(call.name, call.inputs, call.shape, mask, factor, zero, zero)
