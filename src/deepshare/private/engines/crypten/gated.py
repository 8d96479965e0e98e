"""The activation with gates of single neurons, and a polynomial or nothing elsewhere."""

from collections.abc import Sequence

from torch import Tensor

from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import BITS, truncate
from deepshare.private.engines.crypten.relu import Relus
from deepshare.private.engines.crypten.step import Step
from deepshare.private.ir.program import GatedActivation, Program


class Gated(Step):
    """ReLU of the neurons with a gate, gathered into one vector; a polynomial of the others, or nothing at all."""

    def __init__(self, room: Room, program: Program, number: int) -> None:
        super().__init__(room, program, number)
        operation = program.operations[number]
        if not isinstance(operation, GatedActivation):
            raise TypeError(operation)
        mask, self._cells = operation.mask.flatten(), operation.cells
        self._gated, self._others = mask.nonzero().flatten(), (~mask).nonzero().flatten()
        curved = operation.square is not None and len(self._others)
        self._polynomial = Polynomial(room, operation, self._others) if curved else None

    def deal(self) -> None:
        """For both parts."""
        self._relus: Relus | None = None
        if len(self._gated):
            self._relus = Relus(self.room, (self.room.images, len(self._gated)), self._cells)
        if self._polynomial is not None:
            self._polynomial.deal()

    def settle(self) -> None:
        """For the polynomial."""
        if self._polynomial is not None:
            self._polynomial.settle()

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Both parts; what they open first goes in one round."""
        x = inputs[0].flatten(1)
        result = x.clone()
        others = x[:, self._others]
        hidden = [] if self._polynomial is None else [self._polynomial.hide(others)]
        if self._relus is not None:
            result[:, self._gated], opened = self._relus.run(x[:, self._gated], hidden)
        else:
            opened = self.room.link.open(hidden) if hidden else []
        if self._polynomial is not None:
            result[:, self._others] = self._polynomial.run(others, opened[0])
        return result.view(inputs[0].shape)


class Polynomial:
    """(square x + linear) x + constant, by Horner: a truncation between the two products keeps them in range."""

    def __init__(self, room: Room, operation: GatedActivation, index: Tensor) -> None:
        if operation.square is None or operation.linear is None or operation.constant is None:
            raise TypeError(operation)
        self._room, self._shape, self._index = room, operation.shape, index
        self._square = room.secret(operation.square)
        self._linear = self._gather(room.shared(operation.linear, 2 * BITS))
        self._constant = self._gather(room.shared(operation.constant, 2 * BITS))

    def deal(self) -> None:
        """Masks for x and for what stands in the brackets."""
        source, size = self._room.source, (self._room.images, len(self._index))
        self._x, self._inner = source.fresh(size), source.fresh(size)
        self._x_square = source.derived(size, lambda: self._x.value * self._gather(self._square.mask.value))
        self._x_inner = source.derived(size, lambda: self._x.value * self._inner.value)

    def settle(self) -> None:
        """Put the opened coefficient into what was dealt for its mask."""
        self._rest = self._x.share * self._gather(self._square.offset) + self._x_square.share + self._linear

    def hide(self, x: Tensor) -> Tensor:
        """What has to be opened of x before `run`."""
        return x - self._x.share

    def run(self, x: Tensor, offset: Tensor) -> Tensor:
        """Open the bracket and multiply it by x."""
        self._room.products += 2 * x.numel()
        inner = truncate(offset * self._gather(self._square.share) + self._rest)
        (opened,) = self._room.link.open([inner - self._inner.share])
        return truncate(opened * x + offset * self._inner.share + self._x_inner.share + self._constant)

    def _gather(self, coefficient: Tensor) -> Tensor:
        return coefficient.expand(self._shape).flatten()[self._index]
