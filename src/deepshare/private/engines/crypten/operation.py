"""An operation of the IR on secret shares, with its cost; and those that each party does alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from deepshare.private.engines.crypten.context import Context
from deepshare.private.ir.program import Operation, Program
from deepshare.private.runtime.engine import Part

BYTES = 8

Op = TypeVar("Op", bound=Operation)


class SecureOperation(ABC, Generic[Op]):
    """One operation in one process; making it shares its secrets.

    Args:
        context: The process.
        program: The program.
        number: Number of the operation in it.

    Attributes:
        opens_input: Whether it opens its inputs, each once for all operations that read it.
    """

    opens_input: ClassVar[bool] = False

    def __init__(self, context: Context, program: Program, number: int) -> None:
        self.context, self.number = context, number
        self.operation: Op = program.operations[number]  # type: ignore[assignment]
        self.sizes = [program.operations[source].shape for source in self.operation.inputs]

    def deal(self) -> None:
        """Ask for the masks; in every process, before there are images."""

    def precompute(self) -> None:
        """Compute what depends on masks alone; in the parties, before there are images."""

    @abstractmethod
    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """This party's share of the result, from its shares of the inputs."""

    @staticmethod
    def online(operation: Op, opened: int) -> Part:
        """Bytes, rounds and counts that `run` measures for one image.

        Args:
            operation: The operation.
            opened: Numbers of its inputs that are opened with it: none if another operation has done so.
        """
        return Part()

    @staticmethod
    def dealt(operation: Op) -> int:
        """Words that a dealer sends for one image: products of masks, and what comparisons need."""
        return 0


class Local(SecureOperation[Operation]):
    """An operation that each party does on its own shares, as in the clear: sums and copies."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """On the shares."""
        return self.operation.evaluate(inputs, {})


def exchange(words: int, rounds: int = 1) -> Part:
    """The cost of `words` sent by each party; without any there is no round."""
    return Part(server_bytes=words * BYTES, client_bytes=words * BYTES, rounds=rounds if words else 0)
