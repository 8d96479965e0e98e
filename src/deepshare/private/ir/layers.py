"""Calls of plain CNNs as operations of a program: layers, averages, sums, reshapes and activation modules.

All but the modules are functions: see `calls` for their handlers in general. An activation module is one operation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.private.ir.calls import Chain, IntOrPair, Result, TracedCall, affine, handles, pair
from deepshare.private.ir.patches import cells_of_patches
from deepshare.private.ir.program import (
    Add,
    Affine,
    Convolution,
    GatedActivation,
    Linear,
    Operation,
    Permute,
    Resample,
    Reshape,
    SharedActivation,
    Subtract,
)
from deepshare.sharing.form import NeuronActivation
from deepshare.sharing.gates import GateCell, GateModule, SharedReLU

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
) -> Chain:
    chain, source, dilations = Chain(call), call.inputs[0], pair(dilation)
    if isinstance(padding, str):
        spans = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        padding = [span // 2 for span in spans] if padding == "same" else 0
        shape = list(input.shape[1:])
        for axis, span in enumerate(spans, 1):
            if padding and span % 2:  # an even kernel has one more zero after the map than before it
                source = chain.pad(source, shape, axis, 0, 1)
                shape[axis] += 1
    fields = weight.detach(), _bias(bias, weight), pair(stride), pair(padding), dilations, groups
    chain.add(Convolution, [source], call.shape, *fields)
    return chain


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
    step, spread = pair(stride)[0], pair(dilation)[0]
    pad = padding if isinstance(padding, str) else (0, pair(padding)[0])
    options = bias, (1, step), pad, (1, spread), groups
    return _of_height_1(call, input, lambda inner, maps: _conv2d(inner, maps, weight[:, :, None], *options))


def _of_height_1(call: TracedCall, input: Tensor, convolve: Callable[[TracedCall, Tensor], Result]) -> Chain:
    chain = Chain(call)
    number = chain.add(Reshape, call.inputs, (input.shape[1], 1, input.shape[2]))
    inner = replace(call, inputs=(number,), shapes=((call.shape[0], 1, call.shape[1]),), number=chain.next_number)
    chain.add(Reshape, [chain.extend(convolve(inner, input.unsqueeze(2)))], call.shape)
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


@handles("conv_transpose1d")
def _conv_transpose1d(
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
    step, pad, spread = pair(stride)[0], pair(padding)[0], pair(dilation)[0]
    options = bias, (1, step), (0, pad), 0, groups, (1, spread)
    return _of_height_1(call, input, lambda inner, maps: _conv_transpose2d(inner, maps, weight[:, :, None], *options))


@handles("linear")
def linear(call: TracedCall, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Result:
    """A linear layer; also what matrix products are."""
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


@handles("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(call: TracedCall, input: Tensor, output_size: Any) -> Operation:
    windows = [adaptive_windows(size, out) for size, out in zip(input.shape[2:], call.shape[1:], strict=True)]
    return average(call, input, windows[0], windows[1])


def adaptive_windows(size: int, out: int) -> list[tuple[int, int]]:
    """Windows of adaptive average pooling along a dimension: each with its first place and the one after its last."""
    return [(o * size // out, -(-(o + 1) * size // out)) for o in range(out)]


def average(
    call: TracedCall,
    input: Tensor,
    rows: list[tuple[int, int]],
    columns: list[tuple[int, int]],
    count_outside: bool = False,
) -> Operation:
    """Averages over windows; a window may reach beyond the map, where there are zeros."""
    sums, sizes = zip(
        *(window_sums(size, w, count_outside) for size, w in zip(input.shape[2:], (rows, columns), strict=True)),
        strict=True,
    )
    if all(len(set(size.tolist())) == 1 for size in sizes):
        scale = 1 / (float(sizes[0][0]) * float(sizes[1][0]))
        return Resample(call.name, call.inputs, call.shape, sums[0], sums[1], scale)
    means = [total / size[:, None] for total, size in zip(sums, sizes, strict=True)]
    return Resample(call.name, call.inputs, call.shape, means[0], means[1], 1.0)


def window_sums(size: int, windows: list[tuple[int, int]], count_outside: bool) -> tuple[Tensor, Tensor]:
    """For windows along a dimension the matrix that sums over them, and their sizes."""
    sums = torch.zeros(len(windows), size, dtype=torch.float64)
    for row, (first, last) in zip(sums, windows, strict=True):
        row[max(first, 0) : last] = 1
    counts = torch.tensor([last - first for first, last in windows]) if count_outside else sums.sum(1)
    return sums, counts.double()


@handles("add", "add_", "__add__", "__radd__", "__iadd__", several=True)
def _add(call: TracedCall, input: Any, other: Any, *, alpha: float = 1) -> Chain:
    if len(call.inputs) == 2:
        return _sum_of(call, input, other, alpha)
    return affine(call, input, 1, other * alpha) if call.depends(input) else affine(call, other, alpha, input)


@handles("sub", "sub_", "subtract", "__sub__", "__isub__", several=True)
def _sub(call: TracedCall, input: Any, other: Any, *, alpha: float = 1) -> Chain:
    return _difference(call, input, other, alpha)


@handles("rsub", "__rsub__", several=True)
def _rsub(call: TracedCall, input: Any, other: Any, *, alpha: float = 1) -> Chain:
    return _difference(call, other, input, alpha)


def _difference(call: TracedCall, input: Any, other: Any, alpha: float) -> Chain:
    if len(call.inputs) == 2:
        return _sum_of(call, input, other, -alpha)
    return affine(call, input, 1, -other * alpha) if call.depends(input) else affine(call, other, -alpha, input)


def _sum_of(call: TracedCall, first: Tensor, second: Tensor, factor: float) -> Chain:
    """The sum of two tensors that depend on the image, the second times a number."""
    chain = Chain(call)
    a, b = chain.spread(first, second)
    if abs(factor) != 1:
        b = chain.add(Affine, [b], call.shape, float(factor), 0.0)
    chain.add(Subtract if factor == -1 else Add, [a, b], call.shape)
    return chain


@handles("view_as", "reshape_as", several=True)
@handles("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten")
def _reshape(call: TracedCall, input: Tensor, *_: Any, **__: Any) -> Operation:
    if input.numel() // call.before[0] != torch.Size(call.shape).numel():
        raise call.refuse("a reshape across images", "keep the batch first")
    return Reshape(call.name, call.inputs[:1], call.shape)


@handles("relu", "relu_")
def _relu(call: TracedCall, input: Tensor, inplace: bool = False) -> Chain:
    chain = Chain(call)
    chain.relu(call.inputs[0], call.shape)
    return chain


def activation(module: nn.Module, call: TracedCall, leaders: Leaders) -> Operation:
    """The operation of an activation module.

    Args:
        module: A module for which `is_leaf` holds.
        call: Its call.
        leaders: The leaders so far; a leader enters itself.

    Raises:
        UnsupportedModelError: No engine knows it, or its training is not finished.
    """
    if isinstance(module, SharedReLU):
        return _shared(module, call, leaders)
    if isinstance(module, NeuronActivation):
        return _neurons(module, call)
    raise call.refuse(f"{type(module).__name__}, which no engine knows", "take a method of deepshare's own")


def is_leaf(module: nn.Module) -> bool:
    """Return True if a module becomes one operation, without a look inside."""
    return isinstance(module, GateModule | NeuronActivation)


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


def _neurons(module: NeuronActivation, call: TracedCall) -> Operation:
    """Gates of single neurons or patches, and a polynomial or x itself elsewhere."""
    if unfinished := module.unfinished():
        raise call.refuse(*unfinished)
    form, dimensions = module.form(), len(call.shape)
    mask = form.mask.expand((*call.shape, 1, 1)[:3]).reshape(call.shape).contiguous()
    cells = None if form.patches is None else _cells(form.patches, call)
    if form.factors is None:
        return GatedActivation(call.name, call.inputs, call.shape, mask, cells=cells)
    values = (value.detach().double() for value in form.factors)
    square, linear, constant = (value.view(value.shape[:dimensions]) for value in values)  # of vectors, too
    if bool((square == 0).all() and (linear == 1).all() and (constant == 0).all()):
        return GatedActivation(call.name, call.inputs, call.shape, mask, cells=cells)
    return GatedActivation(call.name, call.inputs, call.shape, mask, square, linear, constant, cells)


def _cells(patches: Tensor, call: TracedCall) -> Tensor:
    height, width = call.shape[1:] if len(call.shape) == 3 else (1, 1)
    return cells_of_patches(patches, height, width)
