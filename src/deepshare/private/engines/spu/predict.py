"""What a run will cost, from its steps: the protocols' own numbers of bytes and rounds.

SEMI2K is exact. CHEETAH's ciphertexts are compressed, so that their sizes vary by a few bytes in a thousand; and after
some 125,000 comparisons a party sends another quarter of a megabyte for more oblivious transfers, which is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, prod

from deepshare.private.engines.spu import ciphertexts
from deepshare.private.engines.spu.lower import lower
from deepshare.private.engines.spu.protocol import Protocol
from deepshare.private.engines.spu.steps import (
    Gated,
    Gates,
    Largest,
    Parts,
    Product,
    Resampled,
    Scale,
    Select,
    Shape,
    Step,
    sums_only,
)
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Part

# The meta data of a share beside its numbers.
_LABEL = 40


def online(program: Program, protocol: Protocol, count: int) -> Mapping[int, Part]:
    """By operation; operations without a step of their own are a part of another's."""
    steps = lower(program, protocol.absorbs, count)
    shapes = {"images": program.input_size} | {step.output: step.shape for step in steps}
    cost = _Semi2k(count, shapes) if protocol.caches else _Cheetah(count, shapes)
    layers: dict[int, Part] = {}
    for step in steps:
        part = replace(cost.of(step), comparisons=compared(step) * count, products=step.products * count)
        layers[step.number] = layers.get(step.number, Part()) + part
    layers[steps[-1].number] += Part(server_bytes=8 * steps[-1].elements * count + _LABEL, rounds=1)
    return layers


def compared(step: Step) -> int:
    """Comparisons of a step for each image."""
    match step:
        case Gates():
            return step.elements
        case Gated():
            return len(step.gates)
        case Largest():
            return step.products
    return 0


def truncations(step: Resampled, before: Shape) -> Iterator[int]:
    """Elements of each truncation of a resampling, for each image."""
    channels, height, _ = before
    if not sums_only(step.columns.numpy()):
        yield channels * height * len(step.columns)
    if not sums_only(step.rows.numpy()):
        yield step.elements
    if step.scale != 1:
        yield step.elements


def halvings(step: Largest) -> Iterator[int]:
    """Elements that are compared at once, for each image, until one of the window is left."""
    left = prod(step.window.kernel)
    while left > 1:
        yield left // 2 * step.elements
        left -= left // 2


def both(size: float, rounds: int = 0) -> Part:
    """So many bytes from each party."""
    return Part(server_bytes=ceil(size), client_bytes=ceil(size), rounds=rounds)


class _Semi2k:
    """Bytes that each party sends for an element: 16 for a product or a selection, 4 to truncate, 56 to compare."""

    def __init__(self, count: int, shapes: Mapping[str, Shape]) -> None:
        self._count, self._shapes = count, shapes
        self._opened: set[str] = set()

    def of(self, step: Step) -> Part:
        count = self._count
        match step:
            case Product():
                columns, outputs = step.hidden["weight"].shape
                return both(step.rows * count * (8 * columns + 4 * outputs), 2)
            case Gates():
                return both(count * step.elements * (56 + step.columns // step.shape[0]), 8)
            case Scale():
                first = step.inputs[1] not in self._opened
                self._opened.add(step.inputs[1])
                opening = 8 * step.rows * prod(step.shape[1:]) * count if first else 0
                return both(20 * step.elements * count + opening, 2 + first)
            case Gated():
                return self._gated(step)
            case Resampled():
                sizes = list(truncations(step, self._shapes[step.inputs[0]]))
                return both(4 * count * sum(sizes), len(sizes))
            case Largest():
                sizes = list(halvings(step))
                return both(72 * count * sum(sizes), 8 * len(sizes))
        return Part()

    def _gated(self, step: Gated) -> Part:
        gates = both(72 * self._count * len(step.gates), 8) if len(step.gates) else Part()
        return gates + (both(32 * self._count * len(step.others), 4) if step.hidden else Part())


class _Cheetah:
    """Comparisons and selections by oblivious transfer, products by homomorphic encryption."""

    def __init__(self, count: int, shapes: Mapping[str, Shape]) -> None:
        self._count, self._shapes = count, shapes
        self._triples = ciphertexts.Triples()

    def of(self, step: Step) -> Part:
        count = self._count
        match step:
            case Product():
                product = ciphertexts.product(step.rows * count, *step.hidden["weight"].shape)
                return product + _truncation(step.elements * count)
            case Gates():
                return _comparison(step.elements * count) + Part(rounds=1)
            case Select():
                return _selection(step.products * count)
            case Parts() | Gated():
                return self._gated(step)
            case Resampled():
                sizes = truncations(step, self._shapes[step.inputs[0]])
                return sum((_truncation(size * count) for size in sizes), Part())
            case Largest():
                sizes = halvings(step)
                return sum((_comparison(size * count) + _selection(size * count) for size in sizes), Part())
        return Part()

    def _gated(self, step: Gated) -> Part:
        gates, others = len(step.gates) * self._count, len(step.others) * self._count
        cost = _comparison(gates) + _selection(gates) if gates else Part()
        if step.hidden and not isinstance(step, Parts):
            cost += ciphertexts.scale(others) + _truncation(others)
        return cost + (self._triples.product(others) + _truncation(others) if step.hidden else Part())


def _comparison(size: int) -> Part:
    return Part(server_bytes=ceil(69.125 * size), client_bytes=ceil(13.125 * size), rounds=17)


def _selection(size: int) -> Part:
    return both(8.125 * size, 2)


def _truncation(size: int) -> Part:
    return Part(server_bytes=3 * size, client_bytes=max(16, size // 8), rounds=1)
