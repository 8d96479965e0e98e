"""Whether the products that read an activation should take its scale, or a product of its own computes it.

A variable with its parts still apart has more channels, so that every product that reads it sends more.
"""

from math import prod

from deepshare.private.engines.spu.ciphertexts import product
from deepshare.private.ir.program import Add, Convolution, Linear, Operation, Program


def pays(program: Program, number: int, parts: int, count: int) -> bool:
    """Whether leaving the scale of an activation to its readers takes fewer bytes.

    Args:
        program: The program.
        number: The activation.
        parts: How many channels of the variable make one of the value.
        count: Images at once.
    """
    activation = program.operations[number]
    channels, rows = activation.shape[0], prod(activation.shape[1:]) * count
    readers = [operation for operation in program.operations if number in operation.inputs]
    left = sum(_more(program, reader, number, parts * channels, count) for reader in readers)
    return left <= _size(rows, parts * channels, channels)


def _more(program: Program, reader: Operation, number: int, channels: int, count: int) -> int:
    """Bytes that a reader sends more if the variable has so many channels."""
    rows, outputs = prod(reader.shape[1:]) * count, reader.shape[0]
    match reader:
        case Convolution() | Linear():
            inner, before = _inner(reader), program.operations[number].shape[0]
            return _size(rows, inner // before * channels, outputs) - _size(rows, inner, outputs)
        case Add():
            others = [program.operations[source] for source in reader.inputs if source != number]
            inner = sum(_inner(other) for other in others if isinstance(other, Convolution | Linear))
            return _size(rows, inner + channels, outputs) - (_size(rows, inner, outputs) if inner else 0)
    return 0


def _inner(operation: Convolution | Linear) -> int:
    weight = operation.weight
    return prod(weight.shape[1:]) * (operation.groups if isinstance(operation, Convolution) else 1)


def _size(rows: int, inner: int, outputs: int) -> int:
    part = product(rows, inner, outputs)
    return part.server_bytes + part.client_bytes
