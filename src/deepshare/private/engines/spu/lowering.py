"""State of the translation of a program into kernels, and the choice between pending and computed values."""

from collections import Counter
from math import prod

import torch
from torch import Tensor

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import Kernel
from deepshare.private.engines.spu.linear import Held, Pending, Value, pending
from deepshare.private.ir.program import Add, Convolution, Operation, Program, Weighted


class Lowering:
    """Kernels and values of the operations so far.

    Args:
        program: The program.
        absorbs: Whether scales go into the products after them where that pays, and sums of products become one.
        count: Number of images at once.
    """

    def __init__(self, program: Program, absorbs: bool, count: int) -> None:
        self.program, self.absorbs, self.count = program, absorbs, count
        self.kernels: list[Kernel] = []
        self.values: dict[int, Value] = {}
        self._uses = Counter(source for op in program.operations for source in op.inputs)
        self._readers = {source: op for op in program.operations for source in op.inputs}

    def emit(self, kernel: Kernel) -> Held:
        """Add a kernel and return its output as a value."""
        self.kernels.append(kernel)
        return Held(kernel.output, kernel.shape)

    def held(self, number: int) -> Held:
        """The variable of an operation's result, perhaps with a pending scale."""
        value = self.values[number]
        if isinstance(value, Pending):
            value = self.values[number] = self.emit(value.kernel(number))
        return value

    def plain(self, number: int) -> Held:
        """The variable that is an operation's result."""
        value = self.held(number)
        if not value.plain:
            value = self.values[number] = self.emit(pending(value).kernel(number))
        return value

    def names(self, operation: Operation) -> tuple[str, ...]:
        """The variables that are an operation's inputs."""
        return tuple(self.plain(source).name for source in operation.inputs)

    def settled(self, number: int, value: Pending) -> Value:
        """Leave a product pending only where nothing but a sum reads it."""
        waits = self.absorbs and self._uses[number] == 1 and isinstance(self._readers[number], Add)
        return value if waits else self.emit(value.kernel(number))

    def apart(self, number: int, name: str, scale: Tensor) -> Held:
        """A value whose channels are parts one after the other, left so or put together, whichever sends less."""
        shape = self.program.operations[number].shape
        value = Held(name, shape, torch.arange(len(scale)) % shape[0], scale)
        if absorbing_pays(self.program, number, len(scale) // shape[0], self.count):
            return value
        return self.emit(pending(value).kernel(number))


def absorbing_pays(program: Program, number: int, parts: int, count: int) -> bool:
    """Return True if leaving the scale of an activation to its readers takes fewer bytes than a product of its own.

    A variable with its parts still apart has more channels, so that every product that reads it sends more.

    Args:
        program: The program.
        number: The activation.
        parts: Number of channels of the variable that make one of the value.
        count: Number of images at once.
    """
    activation = program.operations[number]
    channels, rows = activation.shape[0], prod(activation.shape[1:]) * count
    readers = [operation for operation in program.operations if number in operation.inputs]
    left = sum(_more(program, reader, number, parts * channels, count) for reader in readers)
    return left <= _size(rows, parts * channels, channels)


def _more(program: Program, reader: Operation, number: int, channels: int, count: int) -> int:
    """Additional bytes of a reader if the variable has `channels` channels."""
    rows, outputs = prod(reader.shape[1:]) * count, reader.shape[0]
    match reader:
        case Weighted():
            inner, before = _inner(reader), program.operations[number].shape[0]
            return _size(rows, inner // before * channels, outputs) - _size(rows, inner, outputs)
        case Add():
            others = [program.operations[source] for source in reader.inputs if source != number]
            inner = sum(_inner(other) for other in others if isinstance(other, Weighted))
            return _size(rows, inner + channels, outputs) - (_size(rows, inner, outputs) if inner else 0)
    return 0


def _inner(operation: Weighted) -> int:
    return prod(operation.weight.shape[1:]) * (operation.groups if isinstance(operation, Convolution) else 1)


def _size(rows: int, inner: int, outputs: int) -> int:
    part = cheetah.product(rows, inner, outputs)
    return part.server_bytes + part.client_bytes
