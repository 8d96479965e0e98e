"""Activation modules as operations of a program: each module is one operation."""

from functools import singledispatch

import torch
from torch import Tensor, nn

from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.methods.patches import PatchReLU
from deepshare.methods.snl import MaskedReLU
from deepshare.methods.square import Square
from deepshare.private.ir.calls import TracedCall
from deepshare.private.ir.patches import cells_of_patches
from deepshare.private.ir.program import GatedActivation, Operation, SharedActivation
from deepshare.sharing.gates import GateCell, GateModule, SharedReLU

Leaders = dict[GateCell, int]
"""For each group of gates the number of its leader."""


@singledispatch
def activation(module: nn.Module, call: TracedCall, leaders: Leaders) -> Operation:
    """The operation of an activation module; one function is registered for each class.

    Args:
        module: A module for which `is_leaf` holds.
        call: Its call.
        leaders: The leaders so far; a leader enters itself.

    Raises:
        UnsupportedModelError: No engine knows it, or its training is not finished.
    """
    raise call.refuse(f"{type(module).__name__}, which no engine knows", "take a method of deepshare's own")


def is_leaf(module: nn.Module) -> bool:
    """Whether a module becomes one operation, without a look inside."""
    return isinstance(module, GateModule) or activation.dispatch(type(module)) is not activation.dispatch(object)


@activation.register
def _shared(module: SharedReLU, call: TracedCall, leaders: Leaders) -> Operation:
    if module.cell.phase != "hard":
        raise call.refuse("its gates are not all hard", "finish the switch")
    module.check_map(call.name, call.shape[1:])
    if module.position == 0:
        leaders[module.cell] = call.number
    if module.plain:
        return GatedActivation(call.name, call.inputs, call.shape, torch.ones(call.shape, dtype=torch.bool))
    return SharedActivation(
        call.name,
        call.inputs,
        call.shape,
        leaders[module.cell],
        module.prototypes,
        module.pi.clone(),
        module.alpha.detach().double(),
        module.beta.detach().double(),
        module.position == 0,
        _cells(torch.full((module.prototypes, 2), module.patch), call) if module.patch > 1 else None,
    )


@activation.register
def _masked(module: MaskedReLU, call: TracedCall, leaders: Leaders) -> Operation:
    if not bool(((module.mask == 0) | (module.mask == 1)).all()):
        raise call.refuse("its masks are still between 0 and 1", "finish its training, which makes them binary")
    return GatedActivation(call.name, call.inputs, call.shape, module.mask.bool().reshape(call.shape))


@activation.register
def _patched(module: PatchReLU, call: TracedCall, leaders: Leaders) -> Operation:
    """Channels without a gate pass; of the others the patches are cells."""
    gated = (module.patches > 0).all(1)
    mask = gated.view(-1, *[1] * (len(call.shape) - 1)).expand(call.shape)
    return GatedActivation(
        call.name, call.inputs, call.shape, mask.contiguous(), cells=_cells(module.patches[gated], call)
    )


def _cells(patches: Tensor, call: TracedCall) -> Tensor:
    height, width = call.shape[1:] if len(call.shape) == 3 else (1, 1)
    return cells_of_patches(patches, height, width)


@activation.register
def _polynomial(module: GatedPolynomial, call: TracedCall, leaders: Leaders) -> Operation:
    mask = module.mask.reshape(call.shape)
    values = (value.detach().double() for value in module.factors())
    square, linear, constant = (value.view(value.shape[: len(call.shape)]) for value in values)  # of vectors, too
    if bool((square == 0).all() and (linear == 1).all() and (constant == 0).all()):
        return GatedActivation(call.name, call.inputs, call.shape, mask)
    return GatedActivation(call.name, call.inputs, call.shape, mask, square, linear, constant)


@activation.register
def _square(module: Square, call: TracedCall, leaders: Leaders) -> Operation:
    factor = module.factor().detach().double().view(-1, *[1] * (len(call.shape) - 1))
    mask, zero = torch.zeros(call.shape, dtype=torch.bool), torch.zeros_like(factor)
    return GatedActivation(call.name, call.inputs, call.shape, mask, factor, zero, zero)
