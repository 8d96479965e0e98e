"""Convolutions and fully connected layers with the server's secret weights."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import BITS, WEIGHT_BITS, truncate
from deepshare.private.engines.crypten.step import Step
from deepshare.private.ir.program import Convolution, Linear, Program


class Product(Step):
    """x W + bias, where x = offset + mask is opened and W shared: offset W + (mask W + bias).

    The second part needs no image: mask W is a product of two masks, which is dealt, and of a mask with the opened W.
    """

    def __init__(self, room: Room, program: Program, number: int) -> None:
        super().__init__(room, program, number)
        operation = program.operations[number]
        if not isinstance(operation, Convolution | Linear):
            raise TypeError(operation)
        self._apply, self._size = _function(operation), (room.images, *operation.shape)
        self._weight = room.secret(operation.weight, WEIGHT_BITS)
        bias = room.shared(operation.bias, BITS + WEIGHT_BITS)
        self._bias = bias.view(-1, *[1] * (len(operation.shape) - 1))

    def deal(self) -> None:
        """A mask for x, unless x is opened already, and its product with the weights' mask."""
        self._opening = self.room.opening(self.inputs[0], self.sizes[0])
        self._masks = self.room.source.derived(
            self._size, lambda: self._apply(self._opening.mask.value, self._weight.mask.value)
        )

    def settle(self) -> None:
        """What needs no image."""
        self._rest = self._apply(self._opening.mask.share, self._weight.offset) + self._masks.share + self._bias

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Open x and multiply."""
        offset = self.room.open_value(self.inputs[0], inputs[0])
        return truncate(self._apply(offset, self._weight.share) + self._rest, WEIGHT_BITS)


def _function(operation: Convolution | Linear) -> Callable[[Tensor, Tensor], Tensor]:
    match operation:
        case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
            return partial(torch.conv2d, stride=stride, padding=padding, dilation=dilation, groups=groups)
        case Linear():
            return lambda x, weight: x @ weight.T
