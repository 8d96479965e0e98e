"""Traced calls, and the registry of handlers, which turn them into operations of a program.

A handler gets the call that was traced and the arguments of its function. It returns the operation, or several of them
as a `Chain`; for a function with several results, one chain each. To support another function, write a handler and name
the function in its decorator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.program import GatedActivation, Norm, Operation, Reshape, Select, SharedActivation

IntOrPair = int | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """A call of a function or of an activation module.

    Attributes:
        name: Path of the module.
        inputs: Numbers of the operations whose results it got.
        before: Shape of the first of them, with the batch.
        shapes: Shapes of its results, without the batch.
        number: Number that its first operation will have.
        depends: Says of an argument whether it is a tensor that depends on the image.
    """

    name: str
    inputs: tuple[int, ...]
    before: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    number: int
    depends: Callable[[Any], bool]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its only result, without the batch."""
        return self.shapes[0]

    def refuse(self, what: str, cure: str) -> UnsupportedModelError:
        """The error for a call that no engine can do."""
        return UnsupportedModelError(f"{self.name or 'the network'}: {what}: {cure}")


class Chain:
    """The operations of one call, in order.

    Args:
        call: The call.
        number: Number of the first of them; by default that of the call.

    Attributes:
        operations: The operations.
        result: Number of the operation that has the result: the last one, or the call's input while there is none.
    """

    def __init__(self, call: TracedCall, number: int | None = None) -> None:
        self.operations: list[Operation] = []
        self.result = call.inputs[0]
        self.call, self._first = call, call.number if number is None else number

    @property
    def next_number(self) -> int:
        """Number of the next operation."""
        return self._first + len(self.operations)

    def add(self, kind: type[Operation], inputs: Sequence[int], shape: Sequence[int], *fields: Any) -> int:
        """Add an operation and return its number."""
        self.result = self.next_number
        self.operations.append(kind(self.call.name, tuple(inputs), tuple(shape), *fields))
        return self.result

    def extend(self, made: "Result") -> int:
        """Add what another handler has made, with one result, and return its number."""
        chains = [made] if isinstance(made, Chain) else made if isinstance(made, list) else []
        self.operations += [made] if isinstance(made, Operation) else [one for c in chains for one in c.operations]
        self.result = self.next_number - 1
        return self.result

    def relu(self, source: int, shape: Sequence[int]) -> int:
        """Add a ReLU."""
        return self.add(GatedActivation, [source], shape, torch.ones(tuple(shape), dtype=torch.bool))

    def leaky(self, source: int, shape: Sequence[int], alpha: Tensor, beta: Tensor) -> int:
        """Add x (alpha gate + beta) with a gate for each neuron."""
        channels = shape[0]
        fields = (self.next_number, channels, torch.arange(channels), alpha.double(), beta.double())
        return self.add(SharedActivation, [source], shape, *fields)

    def reshape(self, source: int, before: Sequence[int], shape: Sequence[int]) -> int:
        """Add a reshape where one is needed."""
        return source if tuple(before) == tuple(shape) else self.add(Reshape, [source], shape)

    def select(self, source: int, shape: Sequence[int], dimension: int, index: Sequence[int] | Tensor) -> int:
        """Add a selection along a dimension of a shape, where it is not all as it is."""
        index = torch.as_tensor(index, dtype=torch.int64)
        if index.equal(torch.arange(shape[dimension])):
            return source
        after = (*shape[:dimension], len(index), *shape[dimension + 1 :])
        return self.add(Select, [source], after, dimension, index)

    def pad(self, source: int, shape: Sequence[int], dimension: int, before: int, after: int) -> int:
        """Add zeros before and after along a dimension of a shape."""
        index = [-1] * before + list(range(shape[dimension])) + [-1] * after
        return self.select(source, shape, dimension, index)

    def constant(self, source: int, shape: Sequence[int], value: Tensor) -> int:
        """Add the server's constant, in the place of another result of its shape."""
        flat = (value.numel(), 1, 1)
        empty = self.select(self.reshape(source, shape, flat), flat, 0, [-1] * flat[0])
        values = value.detach().double().flatten()
        return self.reshape(self.norm(empty, flat, torch.ones_like(values), values), flat, shape)

    def expand(self, source: int, before: Sequence[int], shape: Sequence[int]) -> int:
        """Add what repeats dimensions of size 1."""
        size = list(before)
        for dimension, (old, new) in enumerate(zip(before, shape, strict=True)):
            if old != new:
                source = self.select(source, size, dimension, [0] * new)
                size[dimension] = new
        return source

    def norm(self, source: int, shape: Sequence[int], scale: Tensor, shift: Tensor, public: bool = False) -> int:
        """Add scale x + shift for each channel; of what is neither a vector nor maps, by way of maps."""
        if public or len(shape) in (1, 3):
            return self.add(Norm, [source], shape, scale, shift, public)
        maps = (shape[0], 1, torch.Size(shape[1:]).numel())
        number = self.norm(self.reshape(source, shape, maps), maps, scale, shift)
        return self.reshape(number, maps, shape)

    def spread(self, *tensors: Tensor) -> list[int]:
        """Expand the call's inputs, which are these tensors, to the shape of its result."""
        call = self.call
        if any(tensor.dim() != len(call.shape) + 1 for tensor in tensors):
            raise call.refuse("a function of tensors with different numbers of dimensions", "reshape one of them first")
        pairs = zip(call.inputs, tensors, strict=True)
        return [self.expand(source, tensor.shape[1:], call.shape) for source, tensor in pairs]

    def scaled(self, source: int, images: int, scale: Any, shift: Any) -> int:
        """Add scale x + shift of what has the shape of the result: numbers are public, tensors are the server's."""
        values, shape = (scale, shift), self.call.shape
        if not any(isinstance(value, Tensor) for value in values):
            ones = torch.ones(shape[0], dtype=torch.float64)
            return self.norm(source, shape, float(scale) * ones, float(shift) * ones, public=True)
        whole = [torch.as_tensor(v, dtype=torch.float64).detach().expand(images, *shape) for v in values]
        if not all(bool((value == value[:1]).all()) for value in whole):
            raise self.call.refuse("a constant that differs between images", "keep the batch out of it")
        rows = [value[0].reshape(len(value[0]), -1) for value in whole]
        if all(bool((row == row[:, :1]).all()) for row in rows):
            a, b = (row[:, 0].contiguous() for row in rows)
            return self.norm(source, shape, a, b)
        flat = (rows[0].numel(), 1, 1)
        a, b = (row.flatten() for row in rows)
        number = self.norm(self.reshape(source, shape, flat), flat, a, b)
        return self.reshape(number, flat, shape)


def affine(call: TracedCall, x: Tensor, scale: Any, shift: Any) -> Chain:
    """scale x + shift of a tensor that depends on the image."""
    chain = Chain(call)
    if x.dim() != len(call.shape) + 1:
        raise call.refuse("a constant with more dimensions than the tensor", "reshape one of them first")
    source = chain.expand(call.inputs[0], x.shape[1:], call.shape)
    chain.scaled(source, len(x), scale, shift)
    return chain


def pair(value: IntOrPair) -> tuple[int, int]:
    """Two numbers, for height and width."""
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (value[0], value[0])
    return int(first), int(second)


Result = Operation | Chain | list[Chain]
Handler = Callable[..., Result]
HANDLERS: dict[str, Handler] = {}
# Functions that may get several tensors that depend on the image.
SEVERAL: set[str] = set()


def handles(*functions: str, several: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for torch functions.

    Args:
        functions: Their names.
        several: Whether they may get several tensors that depend on the image.
    """

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        SEVERAL.update(functions if several else ())
        return handler

    return register


# Functions that return their argument, in a network that is not training.
PASSING = frozenset(
    {
        *("dropout", "dropout2d", "feature_dropout", "alpha_dropout", "dropout1d", "dropout3d"),
        *("contiguous", "clone", "detach", "data", "requires_grad_"),
        *("to", "double", "float", "half", "bfloat16", "type", "type_as"),
    }
)

_SMOOTH = "turn it into ReLUs with --smooth-to-relu and finetune"
CURES = {
    **dict.fromkeys(("silu", "elu", "mish", "selu", "celu", "softplus", "tanh", "sigmoid"), _SMOOTH),
    "gelu": f"a GELU network is a teacher; take the trained network with hard gates, or {_SMOOTH}",
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), "train with BatchNorm"),
    **dict.fromkeys(("conv3d", "avg_pool3d", "max_pool3d"), "private inference takes images, not volumes"),
    **dict.fromkeys(
        ("softmax", "log_softmax", "softmin"),
        "private inference has no division by a secret: leave attention out, and let a softmax of classes come last",
    ),
}
