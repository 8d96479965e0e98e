"""Products, extremes and piecewise linear functions as operations of a program.

Whatever is piecewise linear is ReLUs: max(a, b) = b + relu(a - b), and with it clamping, hard-sigmoid and max-pooling.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepshare.private.ir.calls import Chain, Result, TracedCall, affine, handles
from deepshare.private.ir.layers import linear
from deepshare.private.ir.program import Add, Affine, GatedActivation, Input, Multiply, Operation, Permute, Subtract

Bound = float | Tensor | None


@handles("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", several=True)
def _mul(call: TracedCall, input: Any, other: Any) -> Chain:
    if len(call.inputs) == 1:
        return affine(call, input, other, 0) if call.depends(input) else affine(call, other, input, 0)
    chain = Chain(call)
    (a, x), (b, y) = zip(call.inputs, (input, other), strict=True)
    if x.dim() != y.dim():
        raise call.refuse("a product of tensors with different numbers of dimensions", "reshape one of them first")
    if x.shape[1:] != call.shape:
        (a, x), (b, y) = (b, y), (a, x)
    chain.add(Multiply, [chain.expand(a, x.shape[1:], call.shape), b], call.shape)
    return chain


@handles("square", "square_")
def _square(call: TracedCall, input: Tensor) -> Operation:
    return _quadratic(call)


@handles("pow", "pow_", "__pow__")
def _pow(call: TracedCall, input: Any, exponent: Any) -> Operation:
    if exponent != 2 or not call.depends(input):
        raise call.refuse("a power other than the square", "use squares")
    return _quadratic(call)


def _quadratic(call: TracedCall) -> Operation:
    one, mask = torch.ones([1] * len(call.shape), dtype=torch.float64), torch.zeros(call.shape, dtype=torch.bool)
    return GatedActivation(call.name, call.inputs, call.shape, mask, one, 0 * one, 0 * one)


@handles("div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", several=True)
def _div(call: TracedCall, input: Any, other: Any, *, rounding_mode: str | None = None) -> Chain:
    if call.depends(other) or rounding_mode:
        raise call.refuse("a division by what depends on the image, or one that rounds", "divide by constants only")
    return affine(call, input, 1 / other, 0)


@handles("neg", "neg_", "negative", "__neg__")
def _neg(call: TracedCall, input: Tensor) -> Chain:
    return affine(call, input, -1, 0)


@handles("matmul", "__matmul__", "mm", "bmm")
def _matmul(call: TracedCall, input: Tensor, other: Tensor) -> Result:
    left = not call.depends(input)
    x, matrix = (other, input) if left else (input, other)
    if matrix.dim() == x.dim() == 3 and bool((matrix == matrix[:1]).all()):
        matrix = matrix[0]
    if matrix.dim() != 2 or (left and x.dim() == 2):
        raise call.refuse("a product with several matrices, or across images", "use x @ matrix, or nn.Linear")
    if not left:
        return linear(call, input, matrix.detach().T.contiguous())
    chain, last = Chain(call), len(call.shape)
    order = (*range(last - 2), last - 1, last - 2)
    turned = chain.add(Permute, call.inputs, x.mT.shape[1:], order)
    number = _times(chain, turned, x.mT, matrix.detach())
    chain.add(Permute, [number], call.shape, order)
    return chain


def _times(chain: Chain, source: int, x: Tensor, weight: Tensor) -> int:
    """Add a linear layer on the last dimension of what has the shape of x."""
    inner = replace(chain.call, inputs=(source,), shapes=((*x.shape[1:-1], len(weight)),), number=chain.next_number)
    return chain.extend(linear(inner, x, weight.contiguous()))


@handles("einsum")
def _einsum(call: TracedCall, equation: str, *operands: Any) -> Chain:
    """One sum of products with a constant: its letters last, as one dimension, a linear layer, and letters in order."""
    tensors = operands[0] if isinstance(operands[0], list | tuple) else operands
    sides, _, after = equation.replace(" ", "").partition("->")
    letters = sides.split(",")
    if len(tensors) != 2 or not after or "." in equation:
        raise call.refuse(f"einsum {equation}", "give two tensors, and write all letters and the result")
    pairs = sorted(zip(tensors, letters, strict=True), key=lambda pair: not call.depends(pair[0]))
    (x, of_x), (constant, of_constant) = pairs
    summed = [letter for letter in of_x if letter not in after]
    kept, new = ([letter for letter in after if letter in side] for side in (of_x, of_constant))
    if after[0] != of_x[0] or set(kept) & set(new) or not summed or {*summed, *new} != {*of_constant}:
        raise call.refuse(f"einsum {equation}", "sum over dimensions that both have, with the batch first in one")
    chain = Chain(call)
    sizes = dict(zip(of_x, x.shape, strict=True)) | dict(zip(of_constant, constant.shape, strict=True))
    order = [of_x.index(letter) for letter in (*kept, *summed)]
    turned = x.permute(order)
    weight = constant.detach().permute([of_constant.index(letter) for letter in (*new, *summed)])
    number = chain.add(Permute, call.inputs, turned.shape[1:], tuple(place - 1 for place in order[1:]))
    flat = turned.flatten(len(kept))
    number = chain.reshape(number, turned.shape[1:], flat.shape[1:])
    outputs = weight.shape[: len(new)].numel()
    number = _times(chain, number, flat, weight.reshape(outputs, -1))
    before = [*kept[1:], *new]
    shape = [sizes[letter] for letter in before]
    number = chain.reshape(number, (*flat.shape[1:-1], outputs), shape)
    order = [before.index(letter) for letter in after[1:]]
    if order != sorted(order):
        chain.add(Permute, [number], call.shape, tuple(order))
    return chain


@handles("addmm")
def _addmm(call: TracedCall, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Result:
    if not call.depends(mat1) or input.dim() != 1:
        raise call.refuse("a product with a matrix from the left, or a matrix that is added", "use nn.Linear")
    return linear(call, mat1, alpha * mat2.detach().T, beta * input.detach())


@handles("leaky_relu", "leaky_relu_")
def _leaky_relu(call: TracedCall, input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Chain:
    return _leaky(call, torch.full((call.shape[0],), negative_slope, dtype=torch.float64))


@handles("rrelu", "rrelu_")
def _rrelu(call: TracedCall, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any) -> Chain:
    return _leaky(call, torch.full((call.shape[0],), (lower + upper) / 2, dtype=torch.float64))


@handles("prelu")
def _prelu(call: TracedCall, input: Tensor, weight: Tensor) -> Chain:
    return _leaky(call, weight.detach().double().expand(call.shape[0]))


def _leaky(call: TracedCall, slope: Tensor) -> Chain:
    chain = Chain(call)
    chain.leaky(call.inputs[0], call.shape, 1 - slope, slope)
    return chain


@handles("abs", "abs_", "__abs__")
def _abs(call: TracedCall, input: Tensor) -> Chain:
    ones = torch.ones(call.shape[0], dtype=torch.float64)
    chain = Chain(call)
    chain.leaky(call.inputs[0], call.shape, 2 * ones, -ones)
    return chain


@handles("relu6")
def _relu6(call: TracedCall, input: Tensor, inplace: bool = False) -> Chain:
    return _clamped(call, 0.0, 6.0)


@handles("hardtanh", "hardtanh_")
def _hardtanh(
    call: TracedCall, input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Chain:
    return _clamped(call, min_val, max_val)


@handles("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_")
def _clamp(call: TracedCall, input: Tensor, min: Bound = None, max: Bound = None) -> Chain:
    return _clamped(call, min, max)


@handles("clamp_max", "clamp_max_")
def _clamp_max(call: TracedCall, input: Tensor, max: Bound) -> Chain:
    return _clamped(call, None, max)


def _clamped(call: TracedCall, low: Bound, high: Bound) -> Chain:
    """low + relu(x - low) - relu(x - high); without a lower bound x - relu(x - high)."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise call.refuse("a bound that is a tensor", "clamp to numbers")
    chain, (x,), shape = Chain(call), call.inputs, call.shape
    result = x
    if low is not None:
        result = chain.relu(_moved(chain, x, shape, -low), shape)
    if high is not None:
        above = chain.relu(_moved(chain, x, shape, -high), shape)
        result = chain.add(Subtract, [result, above], shape)
    _moved(chain, result, shape, low or 0)
    return chain


def _moved(chain: Chain, x: int, shape: Sequence[int], shift: float) -> int:
    return chain.add(Affine, [x], shape, 1.0, float(shift)) if shift else x


def _hard_sigmoid(chain: Chain, x: int, shape: Sequence[int]) -> int:
    """(relu(x + 3) - relu(x - 3)) / 6."""
    low, high = (chain.relu(_moved(chain, x, shape, shift), shape) for shift in (3, -3))
    return chain.add(Affine, [chain.add(Subtract, [low, high], shape)], shape, 1 / 6, 0.0)


@handles("hardsigmoid", "hardsigmoid_")
def _hardsigmoid(call: TracedCall, input: Tensor, inplace: bool = False) -> Chain:
    chain = Chain(call)
    _hard_sigmoid(chain, call.inputs[0], call.shape)
    return chain


@handles("hardswish", "hardswish_")
def _hardswish(call: TracedCall, input: Tensor, inplace: bool = False) -> Chain:
    chain, (x,) = Chain(call), call.inputs
    chain.add(Multiply, [x, _hard_sigmoid(chain, x, call.shape)], call.shape)
    return chain


@handles("maximum", several=True)
def _maximum(call: TracedCall, input: Any, other: Any) -> Chain:
    return _extreme(call, input, other, largest=True)


@handles("minimum", several=True)
def _minimum(call: TracedCall, input: Any, other: Any) -> Chain:
    return _extreme(call, input, other, largest=False)


@handles("max", several=True)
def _max(call: TracedCall, input: Any, other: Any = None, keepdim: bool = False, dim: Any = None) -> Result:
    return _extreme_along(call, input, other if dim is None else dim, largest=True)


@handles("min", several=True)
def _min(call: TracedCall, input: Any, other: Any = None, keepdim: bool = False, dim: Any = None) -> Result:
    return _extreme_along(call, input, other if dim is None else dim, largest=False)


def _extreme_along(call: TracedCall, input: Any, other: Any, largest: bool) -> Result:
    """Of two tensors, or of one along a dimension: its values, and places that nothing may read."""
    if isinstance(other, Tensor):
        return _extreme(call, input, other, largest)
    if other is None:
        raise call.refuse("a maximum across images", "give its dimensions, with the batch first")
    values = _reduced(call, input, other, largest)
    places = Chain(call, values.next_number)
    places.add(Input, (), call.shapes[1])
    return [values, places]


def _extreme(call: TracedCall, input: Any, other: Any, largest: bool) -> Chain:
    chain = Chain(call)
    if len(call.inputs) == 2:
        a, b = chain.spread(input, other)
        best(chain, a, b, call.shape, largest)
        return chain
    x, constant = (input, other) if call.depends(input) else (other, input)
    if x.dim() != len(call.shape) + 1:
        raise call.refuse("a constant with more dimensions than the tensor", "reshape one of them first")
    # max(x, c) = c + relu(x - c), min(x, c) = c - relu(c - x)
    sign = 1 if largest else -1
    source = chain.expand(call.inputs[0], x.shape[1:], call.shape)
    above = chain.relu(chain.scaled(source, len(x), sign, -sign * constant), call.shape)
    chain.scaled(above, len(x), sign, constant)
    return chain


@handles("amax")
def _amax(call: TracedCall, input: Tensor, dim: Any = (), keepdim: bool = False) -> Chain:
    return _reduced(call, input, dim, largest=True)


@handles("amin")
def _amin(call: TracedCall, input: Tensor, dim: Any = (), keepdim: bool = False) -> Chain:
    return _reduced(call, input, dim, largest=False)


def _reduced(call: TracedCall, input: Tensor, dim: Any, largest: bool) -> Chain:
    """One dimension after the other, halved until one entry is left; of an odd number the middle one is in both."""
    chain, shape, x = Chain(call), list(input.shape[1:]), call.inputs[0]
    for one in [dim] if isinstance(dim, int) else dim or range(input.dim()):
        place = one % input.dim() - 1
        if place < 0:
            raise call.refuse("a maximum across images", "keep the batch first")
        while (size := shape[place]) > 1:
            half = (size + 1) // 2
            first = chain.select(x, shape, place, range(half))
            second = chain.select(x, shape, place, range(size - half, size))
            shape[place] = half
            x = best(chain, first, second, shape, largest)
    chain.reshape(x, shape, call.shape)
    return chain


def best(chain: Chain, a: int, b: int, shape: Sequence[int], largest: bool = True) -> int:
    """max(a, b) = b + relu(a - b), or min(a, b) = b - relu(b - a)."""
    first, second = (a, b) if largest else (b, a)
    gated = chain.relu(chain.add(Subtract, [first, second], shape), shape)
    return chain.add(Add if largest else Subtract, [b, gated], shape)
