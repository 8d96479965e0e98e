"""What a program will cost, from its shapes alone: what `party` measures, to the byte and the round."""

from dataclasses import replace
from math import prod

from deepshare.private.engines.crypten.words import ADDER_ROUNDS, ADDER_WORDS, BYTES, DEALT_WORDS, matches
from deepshare.private.ir.program import (
    Convolution,
    GatedActivation,
    Linear,
    MaxPool,
    Operation,
    Program,
    SharedActivation,
)
from deepshare.private.runtime.engine import Part


def online(program: Program, images: int) -> dict[int, Part]:
    """The cost of each operation, without the time."""
    opened: set[int] = set()
    parts = {}
    for number, operation in enumerate(program.operations):
        fresh = 0
        if isinstance(operation, Convolution | Linear | SharedActivation) and operation.inputs[0] not in opened:
            opened.add(operation.inputs[0])
            fresh = program.operations[operation.inputs[0]].elements
        parts[number] = _times(_operation(operation, fresh), images)
    logits = images * program.operations[-1].elements * BYTES
    parts[number] += Part(server_bytes=logits, rounds=1)
    return parts


def offline(program: Program, images: int) -> Part:
    """What a dealer sends, or a trusted first party would have to."""
    words = sum(_dealt(operation) for operation in program.operations)
    return Part(dealer_bytes=images * words * BYTES)


def _operation(operation: Operation, fresh: int) -> Part:
    """The cost for one image, with so many numbers of its input opened in the round that ends it."""
    match operation:
        case Convolution() | Linear():
            return _exchanges(fresh, int(fresh > 0))
        case SharedActivation():
            gates = _gates(operation.comparisons, fresh) if operation.leads else _exchanges(fresh, int(fresh > 0))
            return replace(gates, products=2 * operation.elements)
        case GatedActivation():
            return _gated(operation)
        case MaxPool():
            levels = [pairs * operation.elements for pairs in matches(prod(operation.kernel))]
            return sum((replace(_gates(count, count), products=count) for count in levels), Part())
    return Part()


def _gated(operation: GatedActivation) -> Part:
    gates, gated = operation.comparisons, operation.gated
    others = operation.elements - gated if operation.square is not None else 0
    first = _gates(gates, gated + others) if gates else _exchanges(others, int(others > 0))
    return replace(first + _exchanges(others, int(others > 0)), products=gated + 2 * others)


def _gates(count: int, others: int) -> Part:
    """Comparisons, the last round of which opens other numbers as well."""
    adder = _exchanges(ADDER_WORDS * count, ADDER_ROUNDS)
    return replace(adder + _exchanges(count + others, 1), comparisons=count)


def _exchanges(words: int, rounds: int) -> Part:
    return Part(server_bytes=words * BYTES, client_bytes=words * BYTES, rounds=rounds)


def _times(part: Part, images: int) -> Part:
    return Part(**{name: value if name == "rounds" else value * images for name, value in vars(part).items()})


def _dealt(operation: Operation) -> int:
    """Products of masks for one image."""
    gates = operation.comparisons * DEALT_WORDS
    match operation:
        case Convolution() | Linear():
            return operation.elements
        case SharedActivation():
            return gates + 5 * operation.elements
        case GatedActivation():
            others = operation.elements - operation.gated if operation.square is not None else 0
            return gates + operation.gated + 2 * others
        case MaxPool():
            return gates + operation.comparisons
    return 0
