"""Operations that each party does on its own shares: the images, sums and copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.spu.kernel import Keep, Kernel, as_is, take
from deepshare.private.engines.spu.linear import Held, Value, pending
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.ir.program import Add, Concatenate, Input, Permute, Reshape, Select, Subtract

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, eq=False, kw_only=True)
class ReshapeKernel(Kernel):
    """The same elements in another shape."""

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """The same elements."""
        return inputs[0].reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class PermuteKernel(Kernel):
    """The same elements with their dimensions in another order."""

    order: tuple[int, ...]

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """The same elements."""
        return inputs[0].transpose(0, *(1 + dimension for dimension in self.order))


@dataclass(frozen=True, eq=False, kw_only=True)
class ShareKernel(ReshapeKernel):
    """The client's images, turned from the client's own into shares."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SumKernel(Kernel):
    """The sum of two."""

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Their sum."""
        return inputs[0] + inputs[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class DifferenceKernel(Kernel):
    """The difference of two."""

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """Their difference."""
        return inputs[0] - inputs[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class TakeKernel(Kernel):
    """Entries along one dimension; -1 for zeros."""

    dimension: int
    index: Tensor

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """The entries; zeros are one entry more."""
        import jax.numpy as jnp

        (x,), axis = inputs, 1 + self.dimension
        if bool((self.index < 0).any()):
            x = jnp.concatenate([x, jnp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)], axis)
        places = np.arange(prod(x.shape[1:])).reshape(x.shape[1:]).take(self.index.numpy(), self.dimension)
        return take(x, places.reshape(-1)).reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinKernel(Kernel):
    """One after the other along the channels."""

    def compute(self, inputs: Sequence["Array"], hidden: Mapping[str, "Array"], keep: Keep = as_is) -> "Array":
        """One after the other."""
        import jax.numpy as jnp

        return jnp.concatenate(inputs, 1)


def lower_input(lowering: Lowering, number: int, operation: Input) -> Held:
    """The images."""
    return lowering.emit(ShareKernel(number=number, inputs=("images",), output=f"v{number}", shape=operation.shape))


def lower_add(lowering: Lowering, number: int, operation: Add) -> Value:
    """A sum of variables; or one product of all that is pending."""
    first, second = (lowering.values[source] for source in operation.inputs)
    if isinstance(first, Held) and isinstance(second, Held) and first.plain and second.plain:
        names = (first.name, second.name)
        return lowering.emit(SumKernel(number=number, inputs=names, output=f"v{number}", shape=first.shape))
    return lowering.settled(number, pending(first) + pending(second))


def lower_concatenate(lowering: Lowering, number: int, operation: Concatenate) -> Held:
    """The variables, and their scales where one is pending."""
    parts = [lowering.held(source) for source in operation.inputs]
    names = tuple(part.name for part in parts)
    if all(part.plain for part in parts):
        return lowering.emit(JoinKernel(number=number, inputs=names, output=f"v{number}", shape=operation.shape))
    owners, scales, first = [], [], 0
    device = next(part.scale.device for part in parts if part.scale is not None)
    for part in parts:
        ones = torch.ones(part.shape[0], dtype=torch.float64, device=device)
        owners.append(first + (torch.arange(part.shape[0]) if part.owner is None else part.owner))
        scales.append(ones if part.scale is None else part.scale)
        first += part.shape[0]
    owner = torch.cat(owners)
    shape = (len(owner), *operation.shape[1:])
    lowering.emit(JoinKernel(number=number, inputs=names, output=f"s{number}", shape=shape))
    return Held(f"s{number}", operation.shape, owner, torch.cat(scales))


def lower_reshape(lowering: Lowering, number: int, operation: Reshape) -> Held:
    """The elements, and their scales where one is pending and the result is a vector."""
    x = lowering.held(operation.inputs[0])
    if not x.plain and len(operation.shape) != 1:
        x = lowering.plain(operation.inputs[0])
    shape = (x.channels(operation.shape[0]), *operation.shape[1:])
    value = lowering.emit(ReshapeKernel(number=number, inputs=(x.name,), output=f"v{number}", shape=shape))
    if x.owner is None or x.scale is None:
        return value
    area = prod(x.shape[1:])
    owner = (x.owner[:, None] * area + torch.arange(area)).flatten()
    return Held(value.name, operation.shape, owner, x.scale.repeat_interleave(area))


def lower_subtract(lowering: Lowering, number: int, operation: Subtract) -> Held:
    """The difference, after pending scales."""
    names = lowering.names(operation)
    return lowering.emit(DifferenceKernel(number=number, inputs=names, output=f"v{number}", shape=operation.shape))


def lower_select(lowering: Lowering, number: int, operation: Select) -> Held:
    """The entries, after a pending scale."""
    kernel = TakeKernel(
        number=number,
        inputs=lowering.names(operation),
        output=f"v{number}",
        shape=operation.shape,
        dimension=operation.dimension,
        index=operation.index,
    )
    return lowering.emit(kernel)


def lower_permute(lowering: Lowering, number: int, operation: Permute) -> Held:
    """The elements, after a pending scale."""
    names, output = lowering.names(operation), f"v{number}"
    kernel = PermuteKernel(number=number, inputs=names, output=output, shape=operation.shape, order=operation.order)
    return lowering.emit(kernel)
