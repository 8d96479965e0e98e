"""The unit that the engine compiles: one function of variables that the parties hold shares of, with its cost."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from deepshare.private.engines.spu.cheetah import Triples
from deepshare.private.ir.program import Shape
from deepshare.private.runtime.outcome import Part

if TYPE_CHECKING:
    from jax import Array

Keep = Callable[["Array"], "Array"]
"""Marks a factor of two products, which has to be opened only once."""


def as_is(x: "Array") -> "Array":
    """No mark, for protocols that keep nothing."""
    return x


@dataclass(eq=False)
class CostContext:
    """State of a prediction from kernel to kernel.

    Attributes:
        count: Number of images at once.
        shapes: Shape of each variable, without the batch.
        opened: Variables that are opened behind a mask, on SEMI2K.
        triples: Triples that are left, on CHEETAH.
    """

    count: int
    shapes: Mapping[str, Shape]
    opened: set[str] = field(default_factory=set)
    triples: Triples = field(default_factory=Triples)


@dataclass(frozen=True, eq=False, kw_only=True)
class Kernel(ABC):
    """One compiled function.

    Attributes:
        number: The operation of the program that it is a part of, and whose cost it is.
        inputs: Variables that it reads.
        output: Variable that it writes.
        shape: Shape of that, without the batch.
        hidden: The server's tensors that it reads, by name; in an outline they have their shape only.
    """

    number: int
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    hidden: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Elements of its result for each image."""
        return prod(self.shape)

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of the hidden matrices that are factors of products."""
        return ()

    @property
    def products(self) -> int:
        """Products of two hidden numbers at activations, for each image."""
        return 0

    @property
    def comparisons(self) -> int:
        """Comparisons for each image."""
        return 0

    @abstractmethod
    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """The function for JAX, which the engine compiles and never runs itself. The batch comes first.

        Args:
            inputs: The variables that it reads.
            hidden: The hidden tensors.
            keep: See `Keep`.
        """

    def semi2k(self, context: CostContext) -> Part:
        """Bytes and rounds on SEMI2K."""
        return Part()

    def cheetah(self, context: CostContext) -> Part:
        """Bytes and rounds on CHEETAH."""
        return Part()


def both(size: float, rounds: int = 0) -> Part:
    """The same number of bytes from each party."""
    return Part(server_bytes=ceil(size), client_bytes=ceil(size), rounds=rounds)


def take(x: "Array", positions: Any) -> "Array":
    """Positions of each image; one flat gather, because scattered positions one by one would take seconds."""
    index = np.asarray(positions)
    if len(index) == prod(x.shape[1:]) and bool((index == np.arange(len(index))).all()):
        return x.reshape(len(x), -1)
    count, size = len(x), prod(x.shape[1:])
    return x.reshape(-1)[(np.arange(count)[:, None] * size + index).reshape(-1)].reshape(count, -1)
