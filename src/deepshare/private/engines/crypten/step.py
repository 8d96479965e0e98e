"""What one operation does in each process, and the operations that a party does alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import divide, encode, truncate
from deepshare.private.ir.program import Add, Concatenate, Operation, Program, Resample, Reshape


class Step(ABC):
    """One operation; making it shares its secrets.

    Args:
        room: The process.
        program: Of which it is an operation.
        number: Its number.
    """

    def __init__(self, room: Room, program: Program, number: int) -> None:
        self.room, self.number = room, number
        operation = program.operations[number]
        self.inputs = operation.inputs
        self.sizes = [program.operations[source].shape for source in operation.inputs]

    def deal(self) -> None:  # noqa: B027 - not every operation needs masks
        """Ask for the masks; in every process, before there are images."""

    def settle(self) -> None:  # noqa: B027
        """Compute what can be computed of them; in the parties, before there are images."""

    @abstractmethod
    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """This party's share of the result, from its shares of the inputs."""


class Alone(Step):
    """An operation that each party does on its own shares."""

    def __init__(self, room: Room, program: Program, number: int) -> None:
        super().__init__(room, program, number)
        self.operation: Operation = program.operations[number]

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Sums, copies and products with public numbers."""
        match self.operation:
            case Add():
                return inputs[0] + inputs[1]
            case Concatenate():
                return torch.cat(list(inputs), 1)
            case Reshape(shape=shape):
                return inputs[0].reshape(-1, *shape)
            case Resample(rows=rows, columns=columns, scale=scale):
                return resample(inputs[0], rows, columns, scale)
        raise AssertionError(self.operation)


def resample(x: Tensor, rows: Tensor, columns: Tensor, scale: float) -> Tensor:
    """Averages add first and divide once; other public numbers are rounded to fixed point."""
    divisor = round(1 / scale)
    if all(matrix.equal(matrix.round()) for matrix in (rows, columns)) and divisor * scale == 1:
        total = rows.long() @ x @ columns.long().T
        return total if divisor == 1 else divide(total, divisor)
    return truncate(truncate(encode(rows * scale) @ x) @ encode(columns).T)
