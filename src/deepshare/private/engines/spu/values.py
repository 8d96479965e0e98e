"""What is known of a value before it is computed: a variable, perhaps with a pending scale, or a pending product.

CHEETAH multiplies a share with the server's number by homomorphic encryption, which costs more than a gate. Where a
scale goes into a product anyway, that product's weights take it: alpha, beta and the coefficients of a polynomial cost
nothing of their own then. And products that are added to each other are one product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.spu.steps import Shape, Window
from deepshare.private.ir.program import Convolution, Linear


@dataclass(frozen=True, eq=False)
class Held:
    """A variable.

    Attributes:
        name: The variable.
        shape: Shape of the value.
        owner: For each channel of the variable the channel of the value that it is a part of; None: it is the value.
        scale: For each channel of the variable the server's factor.
    """

    name: str
    shape: Shape
    owner: Tensor | None = None
    scale: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the variable is the value."""
        return self.owner is None

    def scaled(self, weight: Tensor) -> Tensor:
        """The weights (O, C, ...) of a product with the value as those of a product with the variable."""
        if self.owner is None or self.scale is None:
            return weight
        return weight[:, self.owner.to(weight.device)] * self.scale.view(1, -1, *[1] * (weight.dim() - 2))


@dataclass(frozen=True, eq=False)
class Term:
    """A product that is to be computed: of a variable, read through a window, with the server's weights (K, C_out).

    Attributes:
        number: The layer that it is; None for a scale.
    """

    number: int | None
    source: str
    window: Window
    weight: Tensor


@dataclass(frozen=True, eq=False)
class Pending:
    """A sum of products, a bias, and variables that are added as they are."""

    shape: Shape
    terms: tuple[Term, ...]
    bias: Tensor | None
    addends: tuple[str, ...] = ()


Value = Held | Pending


def product(operation: Convolution | Linear, number: int, x: Held) -> Pending:
    """The pending product of a layer."""
    if isinstance(operation, Linear):
        weight, window = operation.weight[:, :, None, None], Window()
    else:
        weight = _dense(operation.weight, operation.groups)
        kernel = (weight.shape[2], weight.shape[3])
        window = Window(kernel, operation.stride, operation.padding, operation.dilation)
    term = Term(number, x.name, window, _matrix(x.scaled(weight)))
    return Pending(operation.shape, (term,), operation.bias)


def pending(value: Value) -> Pending:
    """Any value as a pending product; a scale becomes a product with a diagonal."""
    if isinstance(value, Pending):
        return value
    channels = value.shape[0]
    if value.scale is None:
        return Pending(value.shape, (), None, (value.name,))
    identity = torch.eye(channels, dtype=torch.float64, device=value.scale.device)[:, :, None, None]
    term = Term(None, value.name, Window(), _matrix(value.scaled(identity)))
    return Pending(value.shape, (term,), None)


def total(first: Pending, second: Pending) -> Pending:
    """Their sum."""
    biases = [value.bias for value in (first, second) if value.bias is not None]
    bias = torch.stack(biases).sum(0) if biases else None
    return Pending(first.shape, first.terms + second.terms, bias, first.addends + second.addends)


def _matrix(weight: Tensor) -> Tensor:
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])


def _dense(weight: Tensor, groups: int) -> Tensor:
    """The weights of a grouped convolution as those of one group, with zeros: one product instead of one per group."""
    if groups == 1:
        return weight
    own = torch.eye(groups, dtype=weight.dtype, device=weight.device)[:, None, :, None, None, None]
    blocks = own * weight.unflatten(0, (groups, -1))[:, :, None]
    dense: Tensor = blocks.reshape(weight.shape[0], -1, *weight.shape[2:])
    return dense
