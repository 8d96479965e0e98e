"""Fold BatchNorm into the convolution before it, and leave out what nobody reads."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepshare.private.ir.program import Convolution, Linear, Operation, Program, SharedActivation


@dataclass(frozen=True, eq=False)
class Norm(Operation):
    """x scale + shift for each channel; programs have none."""

    scale: Tensor
    shift: Tensor


def fold(operations: Sequence[Operation], output: int) -> Program:
    """Make a program of recorded operations: the last is its output, every Norm is folded away.

    A Norm that reads the only use of a convolution or a linear layer becomes a part of it; any other, such as the first
    of a pre-activation block, a convolution of 1x1 with one group for each channel.
    """
    wanted = _reachable(operations, output)
    uses = Counter(source for number in wanted for source in operations[number].inputs)
    kept: list[Operation] = []
    place: dict[int, int] = {}
    for number in sorted(wanted):
        operation = operations[number]
        before = operation.inputs[0] if operation.inputs else 0
        if isinstance(operation, Norm) and uses[before] == 1 and isinstance(kept[place[before]], Convolution | Linear):
            place[number] = place[before]
            kept[place[number]] = _scaled(kept[place[before]], operation)
            continue
        place[number] = len(kept)
        kept.append(_placed(operation, place))
    return Program(tuple(kept))


def _reachable(operations: Sequence[Operation], output: int) -> set[int]:
    wanted, open_ends = {0}, [output]
    while open_ends:
        number = open_ends.pop()
        if number not in wanted:
            wanted.add(number)
            operation = operations[number]
            open_ends += operation.inputs
            if isinstance(operation, SharedActivation):
                open_ends.append(operation.leader)
    return wanted


def _placed(operation: Operation, place: dict[int, int]) -> Operation:
    inputs = tuple(place[source] for source in operation.inputs)
    if isinstance(operation, SharedActivation):
        return replace(operation, inputs=inputs, leader=place[operation.leader])
    if isinstance(operation, Norm):
        return _alone(replace(operation, inputs=inputs))
    return replace(operation, inputs=inputs)


def _scaled(operation: Operation, norm: Norm) -> Operation:
    if not isinstance(operation, Convolution | Linear):
        raise TypeError(operation)
    scale = norm.scale.view(-1, *[1] * (operation.weight.dim() - 1))
    return replace(operation, weight=operation.weight * scale, bias=operation.bias * norm.scale + norm.shift)


def _alone(norm: Norm) -> Operation:
    if len(norm.shape) == 1:
        return Linear(norm.name, norm.inputs, norm.shape, torch.diag(norm.scale), norm.shift)
    weight = norm.scale.view(-1, 1, 1, 1)
    return Convolution(norm.name, norm.inputs, norm.shape, weight, norm.shift, groups=len(weight))
