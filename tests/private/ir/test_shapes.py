"""Slices, padding, concatenation and other moves of numbers as operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.private.ir.functions import SIZE, Function, check_function, same


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda m, x: x[:, :, ::2, 1:-1], 0),
        (lambda m, x: x[..., 0], 0),
        (lambda m, x: x[:, None], 0),
        (lambda m, x: x[:, [1, 0, 0]], 0),
        (lambda m, x: x.chunk(2, 1)[1] + x.split(1, dim=1)[0], 0),
        (lambda m, x: torch.cat(x.unbind(2)[:3], 2), 0),
        (lambda m, x: x.narrow(2, 1, 3).select(3, -1), 0),
        (lambda m, x: F.pad(x, (1, 2, -1, 1), value=2.5), 0),
        (lambda m, x: F.pad(x, (1, 2, 3, 1), mode="reflect"), 0),
        (lambda m, x: F.pad(x, (1, 2, 3, 1), mode="circular"), 0),
        (lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 2)), 0),
        (lambda m, x: x.mean((2, 3), keepdim=True).expand(-1, -1, 4, 5), 0),
        (lambda m, x: x.repeat(1, 2, 1, 3), 0),
        (lambda m, x: x.roll(2, 3), 0),
        (lambda m, x: torch.stack([x, -x], -1).flatten(1), 0),
        (lambda m, x: F.channel_shuffle(torch.cat([x, -x], 1), 2), 0),
        (lambda m, x: F.pixel_shuffle(torch.cat([x, -x], 1), 2), 0),
        (lambda m, x: F.pixel_unshuffle(x[:, :, :, 1:], 2), 0),
    ],
)
def test_functions_are_a_few_operations(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    check_function(function, comparisons)


def coordinates(x: Tensor) -> Tensor:
    """A map of coordinates, as in CoordConv."""
    return torch.linspace(-1, 1, 9).double().expand(len(x), 1, 8, 9)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, F.relu(x), x], 1),
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: torch.permute(x, (0, -1, 1, 2)),
        lambda x: x.transpose(-1, 1).flatten(1),
        lambda x: x.flip(2, -1) + torch.flip(x, [1]),
        lambda x: torch.movedim(x, (1, 2), (3, 1)).movedim(-1, 1).mT,
        lambda x: x.repeat_interleave(2, 2).repeat_interleave(torch.tensor([1, 2]), 1),
        lambda x: torch.cat([coordinates(x), x], 1),
        lambda x: torch.cat([x, torch.ones(len(x), 2, 1, 9).double()], 2),
        lambda x: F.relu(x).flatten(1).view_as(x),
        lambda x: torch.cat([x, x], 1).view(-1, 2, 2, 8, 9).swapaxes(1, 2).contiguous().view(-1, 4, 8, 9),
    ],
)
def test_other_functions(function: Callable[[Tensor], Tensor]) -> None:
    same(Function(function), SIZE)
