"""Convolutions and fully connected layers with the server's secret weights."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.fixed import BITS, WEIGHT_BITS, truncate
from deepshare.private.engines.crypten.operation import SecureOperation, exchange
from deepshare.private.ir.program import Convolution, Program, Weighted
from deepshare.private.runtime.engine import Part


class SecureLinear(SecureOperation[Weighted]):
    """x W + bias, where x = opened + mask and W is shared: opened W + (mask W + bias).

    The second part needs no image: mask W is a product of two masks, which is dealt, and of a mask with the opened W.
    """

    opens_input = True

    def __init__(self, context: Context, program: Program, number: int) -> None:
        super().__init__(context, program, number)
        operation = self.operation
        self._product, self._size = _product(operation), (context.images, *operation.shape)
        self._weight = context.secret(operation.weight, WEIGHT_BITS)
        bias = context.shared(operation.bias, BITS + WEIGHT_BITS)
        self._bias = bias.view(-1, *[1] * (len(operation.shape) - 1))

    def deal(self) -> None:
        """A mask for x, unless x is opened already, and its product with the weights' mask."""
        self._x = self.context.masked_value(self.operation.inputs[0], self.sizes[0])
        self._masks = self.context.triples.derived(
            self._size, lambda: self._product(self._x.mask.value, self._weight.mask.value)
        )

    def precompute(self) -> None:
        """mask W + bias."""
        self._rest = self._product(self._x.mask.share, self._weight.opened) + self._masks.share + self._bias

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Open x and multiply."""
        (opened,) = self.context.open_values(self.operation.inputs, inputs)
        return truncate(self._product(opened, self._weight.share) + self._rest, WEIGHT_BITS)

    @staticmethod
    def online(operation: Weighted, opened: int) -> Part:
        """The opening of x."""
        return exchange(opened)

    @staticmethod
    def dealt(operation: Weighted) -> int:
        """The product of both masks."""
        return operation.elements


def _product(operation: Weighted) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(operation, Convolution):
        options = {name: getattr(operation, name) for name in ("stride", "padding", "dilation", "groups")}
        return partial(torch.conv2d, **options)
    return lambda x, weight: x @ weight.T
