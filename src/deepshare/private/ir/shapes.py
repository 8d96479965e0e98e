"""Slices, padding, repetition and other orders of elements as operations of a program."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from deepshare.private.ir.calls import Chain, Result, TracedCall, handles
from deepshare.private.ir.program import Concatenate, Operation, Permute, Reshape


@handles("permute")
def _permute(call: TracedCall, input: Tensor, *dims: Any) -> Operation:
    order = [dim % input.dim() for dim in (dims if isinstance(dims[0], int) else dims[0])]
    if order[0] != 0:
        raise call.refuse("a permutation across images", "keep the batch first")
    return Permute(call.name, call.inputs, call.shape, tuple(dim - 1 for dim in order[1:]))


@handles("transpose", "swapaxes", "swapdims")
def _transpose(call: TracedCall, input: Tensor, dim0: int, dim1: int) -> Operation:
    order = list(range(input.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    if order[0] != 0:
        raise call.refuse("a permutation across images", "keep the batch first")
    return Permute(call.name, call.inputs, call.shape, tuple(dim - 1 for dim in order[1:]))


@handles("mT")
def _m_t(call: TracedCall, input: Tensor) -> Result:
    return _transpose(call, input, -2, -1)


@handles("movedim", "moveaxis")
def _movedim(call: TracedCall, input: Tensor, source: Any, destination: Any) -> Result:
    numbered = torch.empty(tuple(range(input.dim())), device="meta")  # each dimension has its number as its size
    return _permute(call, input, tuple(numbered.movedim(source, destination).shape))


@handles("flip")
def _flip(call: TracedCall, input: Tensor, *dims: Any) -> Chain:
    chain, source = Chain(call), call.inputs[0]
    for dim in dims if isinstance(dims[0], int) else dims[0]:
        place = _place(call, input, dim)
        source = chain.select(source, call.shape, place, range(call.shape[place] - 1, -1, -1))
    return chain


@handles("repeat_interleave")
def _repeat_interleave(call: TracedCall, input: Tensor, repeats: Any, dim: int | None = None, **_: Any) -> Chain:
    if dim is None or call.depends(repeats):
        raise call.refuse("a repetition without a dimension, or as often as the image says", "give numbers, and dim")
    chain, place = Chain(call), _place(call, input, dim)
    index = torch.arange(input.shape[dim]).repeat_interleave(torch.as_tensor(repeats))
    chain.select(call.inputs[0], input.shape[1:], place, index)
    return chain


@handles("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(call: TracedCall, input: Tensor, groups: int) -> Chain:
    chain = Chain(call)
    order = torch.arange(input.shape[1]).view(groups, -1).T.flatten()
    chain.select(call.inputs[0], input.shape[1:], 0, order)
    return chain


@handles("pixel_shuffle")
def _pixel_shuffle(call: TracedCall, input: Tensor, upscale_factor: int) -> Chain:
    (channels, height, width), r = input.shape[1:], upscale_factor
    chain = Chain(call)
    apart = (channels // r**2, r, r, height, width)
    number = chain.add(Reshape, call.inputs, apart)
    number = chain.add(Permute, [number], [apart[d] for d in (0, 3, 1, 4, 2)], (0, 3, 1, 4, 2))
    chain.add(Reshape, [number], call.shape)
    return chain


@handles("pixel_unshuffle")
def _pixel_unshuffle(call: TracedCall, input: Tensor, downscale_factor: int) -> Chain:
    (channels, height, width), r = input.shape[1:], downscale_factor
    chain = Chain(call)
    apart = (channels, height // r, r, width // r, r)
    number = chain.add(Reshape, call.inputs, apart)
    number = chain.add(Permute, [number], [apart[d] for d in (0, 2, 4, 1, 3)], (0, 2, 4, 1, 3))
    chain.add(Reshape, [number], call.shape)
    return chain


@handles("cat", "concat", "concatenate", several=True)
def _cat(call: TracedCall, tensors: Sequence[Tensor], dim: int = 0, **_: Any) -> Chain:
    place = dim % tensors[0].dim() - 1
    if place < 0:
        raise call.refuse(f"concatenation along dimension {dim}", "keep the batch first")
    chain, given = Chain(call), iter(call.inputs)
    sources = [next(given) if call.depends(tensor) else _constant(chain, tensor, place) for tensor in tensors]
    _joined(chain, sources, [tensor.shape[1:] for tensor in tensors], place, call.shape)
    return chain


def _constant(chain: Chain, value: Tensor, place: int) -> int:
    """A constant, such as a map of coordinates, that is joined to what depends on the image."""
    call = chain.call
    if not bool((value == value[:1]).all()):
        raise call.refuse("a constant that differs between images", "keep the batch out of it")
    before = call.before[1:]
    shape = (*before[:place], value.shape[place + 1], *before[place + 1 :])
    return chain.constant(chain.select(call.inputs[0], before, place, [0] * shape[place]), shape, value[0])


def _joined(
    chain: Chain, sources: Sequence[int], shapes: Sequence[Sequence[int]], place: int, shape: Sequence[int]
) -> None:
    """Add a concatenation, along another dimension than the first by way of that one."""
    if place == 0:
        chain.add(Concatenate, sources, shape)
        return
    order = list(range(len(shape)))
    order[0], order[place] = place, 0
    swapped = [
        chain.add(Permute, [source], [size[d] for d in order], tuple(order))
        for source, size in zip(sources, shapes, strict=True)
    ]
    number = chain.add(Concatenate, swapped, [shape[d] for d in order])
    chain.add(Permute, [number], shape, tuple(order))


@handles("stack", several=True)
def _stack(call: TracedCall, tensors: Sequence[Tensor], dim: int = 0) -> Chain:
    place = dim % (tensors[0].dim() + 1) - 1
    if place < 0 or len(call.inputs) != len(tensors):
        raise call.refuse(f"stacking along dimension {dim}", "stack tensors that depend on the image, batch first")
    chain, slab = Chain(call), [1 if d == place else size for d, size in enumerate(call.shape)]
    parts = [chain.add(Reshape, [source], slab) for source in call.inputs]
    _joined(chain, parts, [slab] * len(parts), place, call.shape)
    return chain


@handles("__getitem__")
def _getitem(call: TracedCall, input: Tensor, key: Any) -> Chain:
    keys = list(key) if isinstance(key, tuple) else [key]
    named = sum(one is not None and one is not ... for one in keys)
    if ... in [one for one in keys if not isinstance(one, Tensor)]:
        place = next(i for i, one in enumerate(keys) if one is ...)
        keys[place : place + 1] = [slice(None)] * (input.dim() - named)
    chain, shape, dimension, source = Chain(call), list(input.shape[1:]), -1, call.inputs[0]
    for one in keys:
        if one is None:
            continue
        if dimension < 0:
            if not isinstance(one, slice) or range(len(input))[one] != range(len(input)):
                raise call.refuse("a slice across images", "keep the batch first and whole")
        else:
            entries = _entries(call, one, shape[dimension])
            source = chain.select(source, shape, dimension, entries)
            shape[dimension] = len(entries)
        dimension += 1
    chain.reshape(source, shape, call.shape)
    return chain


def _entries(call: TracedCall, key: Any, size: int) -> list[int]:
    if isinstance(key, slice):
        return list(range(size)[key])
    if isinstance(key, int):
        return [key % size]
    if isinstance(key, Tensor) and key.dim() == 1 and key.dtype == torch.int64 and not call.depends(key):
        return [int(entry) % size for entry in key]
    if isinstance(key, list) and all(type(entry) is int for entry in key):
        return [entry % size for entry in key]
    raise call.refuse("an index that is no slice, no number and no list", "slice it")


def _place(call: TracedCall, input: Tensor, dim: int) -> int:
    """A dimension without the batch."""
    if dim % input.dim() == 0:
        raise call.refuse("a selection across images", "keep the batch first and whole")
    return dim % input.dim() - 1


@handles("narrow")
def _narrow(call: TracedCall, input: Tensor, dim: int, start: int, length: int) -> Chain:
    chain, place = Chain(call), _place(call, input, dim)
    chain.select(call.inputs[0], input.shape[1:], place, range(start, start + length))
    return chain


@handles("index_select")
def _index_select(call: TracedCall, input: Tensor, dim: int, index: Tensor) -> Chain:
    chain, place = Chain(call), _place(call, input, dim)
    chain.select(call.inputs[0], input.shape[1:], place, index)
    return chain


@handles("select")
def _select(call: TracedCall, input: Tensor, dim: int, index: int) -> Chain:
    return _parts(call, input, dim, [1], index % input.shape[dim])[0]


@handles("split", "split_with_sizes", "chunk", "tensor_split")
def _split(call: TracedCall, input: Tensor, sections: Any = None, dim: int = 0, **_: Any) -> list[Chain]:
    place = _place(call, input, dim)
    return _parts(call, input, dim, [shape[place] for shape in call.shapes])


@handles("unbind")
def _unbind(call: TracedCall, input: Tensor, dim: int = 0) -> list[Chain]:
    return _parts(call, input, dim, [1] * len(call.shapes))


def _parts(call: TracedCall, input: Tensor, dim: int, sizes: Sequence[int], first: int = 0) -> list[Chain]:
    """Parts one after the other along a dimension, each in the shape of its result."""
    place, chains, number = _place(call, input, dim), [], call.number
    for size, start, shape in zip(sizes, accumulate(sizes, initial=first), call.shapes, strict=False):
        chain = Chain(call, number)
        part = chain.select(call.inputs[0], input.shape[1:], place, range(start, start + size))
        chain.reshape(part, [size if d == place else old for d, old in enumerate(input.shape[1:])], shape)
        chains.append(chain)
        number += len(chain.operations)
    return chains


@handles("pad")
def _pad(
    call: TracedCall, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Chain:
    if len(pad) // 2 >= input.dim():
        raise call.refuse("padding across images", "keep the batch first and whole")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise call.refuse(f"padding {mode}", "use constant, reflect, replicate or circular")
    chain, shape, source = Chain(call), list(input.shape[1:]), call.inputs[0]
    # Around a maximum, repeating the edge is the same as minus infinity; translation checks the result.
    kind = "replicate" if value == -torch.inf else mode
    shifted = kind == "constant" and bool(value)
    if shifted:
        source = _shifted(chain, source, shape, -float(value or 0))
    for pair, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dimension = len(shape) - 1 - pair
        index = _around(range(-before, shape[dimension] + after), shape[dimension], kind)
        source = chain.select(source, shape, dimension, index)
        shape[dimension] = len(index)
    if shifted:
        _shifted(chain, source, shape, float(value or 0))
    return chain


def _shifted(chain: Chain, source: int, shape: Sequence[int], shift: float) -> int:
    ones = torch.ones(shape[0], dtype=torch.float64)
    return chain.norm(source, shape, ones, shift * ones, public=True)


def _around(entries: range, size: int, mode: str) -> list[int]:
    match mode:
        case "constant":
            return [i if 0 <= i < size else -1 for i in entries]
        case "replicate":
            return [min(max(i, 0), size - 1) for i in entries]
        case "circular":
            return [i % size for i in entries]
    return [abs(i) if i < size else 2 * (size - 1) - i for i in entries]


@handles("roll")
def _roll(call: TracedCall, input: Tensor, shifts: Any, dims: Any = None) -> Chain:
    chain, source = Chain(call), call.inputs[0]
    pairs = zip([shifts], [dims], strict=True) if isinstance(shifts, int) else zip(shifts, dims, strict=True)
    for shift, dim in pairs:
        place = _place(call, input, dim)
        size = call.shape[place]
        source = chain.select(source, call.shape, place, [(i - shift) % size for i in range(size)])
    return chain


@handles("expand", "repeat")
@handles("expand_as", several=True)
def _expand(call: TracedCall, input: Tensor, *_: Any) -> Chain:
    if input.dim() != len(call.shape) + 1:
        raise call.refuse("a repetition along new dimensions", "reshape it to as many dimensions first")
    chain, size, source = Chain(call), list(input.shape[1:]), call.inputs[0]
    for dimension, (old, new) in enumerate(zip(size, call.shape, strict=True)):
        source = chain.select(source, size, dimension, list(range(old)) * (new // old))
        size[dimension] = new
    return chain
