"""Products with the server's weights, and values whose product or scale is still pending.

CHEETAH multiplies a share with the server's number by homomorphic encryption, which costs more than a gate. Where a
scale goes into a product anyway, that product's weights take it: alpha, beta and the coefficients of a polynomial cost
nothing of their own then. And products that are added to each other are one product.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepshare.private.engines.spu import cheetah
from deepshare.private.engines.spu.kernel import CostContext, Keep, Kernel, as_is, both
from deepshare.private.ir.program import Convolution, Shape, Weighted
from deepshare.private.runtime.outcome import Part

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, eq=False)
class Window:
    """The way that a convolution reads its input; a fully connected layer reads all of it at once."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def patches(self, x: "Array", shape: Shape, outside: float) -> "list[Array]":
        """For each position of the window, (N, C, H, W) of its values, one for each element of the result."""
        import jax.numpy as jnp
        from jax import lax

        (top, left), (down, right) = self.padding, self.stride
        if top or left:
            x = jnp.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=outside)
        patches = []
        for row in range(0, self.kernel[0] * self.dilation[0], self.dilation[0]):
            for column in range(0, self.kernel[1] * self.dilation[1], self.dilation[1]):
                ends = (row + (shape[1] - 1) * down + 1, column + (shape[2] - 1) * right + 1)
                patches.append(lax.slice(x, (0, 0, row, column), (*x.shape[:2], *ends), (1, 1, down, right)))
        return patches


@dataclass(frozen=True, eq=False, kw_only=True)
class ProductKernel(Kernel):
    """A sum of convolutions as one matrix product: hidden `weight` (K, C_out), with `bias` and plain addends.

    The columns of the left factor are those of the first window by position and channel, then of the second, and so on.
    The first inputs have windows, the others are added as they are.
    """

    windows: tuple[Window, ...] = ()

    @property
    def factors(self) -> tuple[str, ...]:
        """The weights."""
        return ("weight",)

    @property
    def rows(self) -> int:
        """Rows of the left factor for each image."""
        return prod(self.shape[1:])

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """One matrix product, then sums."""
        import jax.numpy as jnp

        columns = [self._columns(x, window) for x, window in zip(inputs, self.windows, strict=False)]
        y = jnp.concatenate(columns, 1) @ hidden["weight"]
        if "bias" in hidden:
            y = y + hidden["bias"]
        y = jnp.moveaxis(y.reshape(len(inputs[0]), *self.shape[1:], self.shape[0]), -1, 1)
        for addend in inputs[len(self.windows) :]:
            y = y + addend
        return y

    def _columns(self, x: "Array", window: Window) -> "Array":
        """A row for each element of the result, with the values in its window, channel by channel at each position."""
        import jax.numpy as jnp

        if x.ndim == 2:
            return x
        patches = jnp.stack(window.patches(x, self.shape, 0.0), 1)
        return patches.transpose(0, 3, 4, 1, 2).reshape(-1, patches.shape[1] * x.shape[1])

    def semi2k(self, context: CostContext) -> Part:
        """The left factor is opened, the result truncated."""
        columns, outputs = self.hidden["weight"].shape
        return both(self.rows * context.count * (8 * columns + 4 * outputs), 2)

    def cheetah(self, context: CostContext) -> Part:
        """A product of ciphertexts, and a truncation."""
        product = cheetah.product(self.rows * context.count, *self.hidden["weight"].shape)
        return product + cheetah.truncation(self.elements * context.count)


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
        """True if the variable is the value."""
        return self.owner is None

    def channels(self, of_value: int) -> int:
        """Channels of a variable of the same structure, for a value with `of_value` channels."""
        return of_value if self.owner is None else len(self.owner) * of_value // self.shape[0]

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

    def __add__(self, other: "Pending") -> "Pending":
        """One product of both."""
        biases = [value.bias for value in (self, other) if value.bias is not None]
        bias = torch.stack(biases).sum(0) if biases else None
        return Pending(self.shape, self.terms + other.terms, bias, self.addends + other.addends)

    def kernel(self, number: int) -> ProductKernel:
        """The kernel that computes it as the value of an operation; its cost is that of the last layer in it."""
        hidden = {"weight": torch.cat([term.weight for term in self.terms])}
        if self.bias is not None:
            hidden["bias"] = self.bias
        return ProductKernel(
            number=max((term.number for term in self.terms if term.number is not None), default=number),
            inputs=(*(term.source for term in self.terms), *self.addends),
            output=f"v{number}",
            shape=self.shape,
            hidden=hidden,
            windows=tuple(term.window for term in self.terms),
        )


Value = Held | Pending


def layer(operation: Weighted, number: int, x: Held) -> Pending:
    """The pending product of a layer."""
    if isinstance(operation, Convolution):
        weight = _dense(operation.weight, operation.groups)
        kernel = (weight.shape[2], weight.shape[3])
        window = Window(kernel, operation.stride, operation.padding, operation.dilation)
    else:
        weight, window = operation.weight[:, :, None, None], Window()
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
