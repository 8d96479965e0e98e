"""A program in the clear, in float64: the reference that every engine is measured against."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.ir.patches import sums
from deepshare.private.ir.program import (
    Add,
    Concatenate,
    Convolution,
    GatedActivation,
    Linear,
    MaxPool,
    Operation,
    Program,
    Resample,
    Reshape,
    SharedActivation,
)


def evaluate(program: Program, images: Tensor, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
    """Run a program on a batch of images.

    Args:
        program: With its hidden numbers.
        images: (N, C, H, W), as the network takes them.
        see: Called with the number and the result of each operation.
    """
    last = program.last_use()
    values: dict[int, Tensor] = {0: images.double()}
    gates: dict[int, Tensor] = {}
    for number, operation in enumerate(program.operations):
        if number:
            values[number] = _apply(operation, [values[i] for i in operation.inputs], number, gates)
        if see is not None:
            see(number, values[number])
        for source in set(operation.inputs):
            if last[source] == number:
                del values[source]
    return values[len(program.operations) - 1]


def _apply(operation: Operation, inputs: list[Tensor], number: int, gates: dict[int, Tensor]) -> Tensor:
    x = inputs[0]
    match operation:
        case Convolution(weight=w, bias=b, stride=stride, padding=padding, dilation=dilation, groups=groups):
            return F.conv2d(x, w, b, stride, padding, dilation, groups)
        case Linear(weight=w, bias=b):
            return F.linear(x, w, b)
        case Resample(rows=rows, columns=columns, scale=scale):
            return scale * (rows @ x @ columns.T)
        case MaxPool(kernel=kernel, stride=stride, padding=padding):
            return F.max_pool2d(x, kernel, stride, padding)
        case Add():
            return inputs[0] + inputs[1]
        case Concatenate():
            return torch.cat(inputs, 1)
        case Reshape(shape=shape):
            return x.reshape(-1, *shape)
        case SharedActivation():
            return _shared(operation, x, number, gates)
        case GatedActivation():
            return _gated(operation, x)
    raise AssertionError(operation)


def _shared(operation: SharedActivation, x: Tensor, number: int, gates: dict[int, Tensor]) -> Tensor:
    if operation.leads:
        first = x[:, : operation.prototypes]
        gates[number] = _decided(first, operation.cells).to(x.dtype)
    spread = gates[operation.leader][:, operation.pi].reshape(x.shape)
    per_channel = (-1, *[1] * (x.dim() - 2))
    return x * (operation.alpha.view(per_channel) * spread + operation.beta.view(per_channel))


def _gated(operation: GatedActivation, x: Tensor) -> Tensor:
    otherwise = x
    if operation.square is not None and operation.linear is not None and operation.constant is not None:
        otherwise = (operation.square * x + operation.linear) * x + operation.constant
    if operation.cells is None:
        return torch.where(operation.mask, x.relu(), otherwise)
    where = operation.mask.flatten().nonzero().flatten()
    neurons = x.flatten(1)[:, where]
    result = otherwise.flatten(1).clone()
    result[:, where] = neurons * _decided(neurons, operation.cells)
    return result.view(x.shape)


def _decided(neurons: Tensor, cells: Tensor | None) -> Tensor:
    """For each neuron whether its gate is open."""
    if cells is None:
        return neurons >= 0
    return (sums(neurons, cells) >= 0)[:, cells].view(neurons.shape)
