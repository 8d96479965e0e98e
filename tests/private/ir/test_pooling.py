"""Pooling, means, sums and resampling as operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.private.ir.program import Resample, Reshape
from tests.private.ir.functions import SIZE, Function, check_function, same


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda m, x: x.sum(1, keepdim=True), 0),
        (lambda m, x: torch.stack([x, -x], 1).sum(1), 0),
        (lambda m, x: x.mean(1, keepdim=True) + x.mean((1, 2))[:, None, None], 0),
        (lambda m, x: x.mean(3), 0),
        (lambda m, x: x.sum((1, 3)) + x.flatten(1).sum(1, keepdim=True), 0),
        (lambda m, x: F.avg_pool1d(x.flatten(2), 5, 3, 1) + F.adaptive_avg_pool1d(x.flatten(2), 24), 0),
        (lambda m, x: F.avg_pool1d(x.flatten(2), 5, 4, ceil_mode=True, count_include_pad=False), 0),
        (lambda m, x: F.max_pool2d(x, 3, 2, 0, 1, True), 192),
        (lambda m, x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2), 208),
        (lambda m, x: F.max_pool2d(x, (2, 3), dilation=2), 76),
        (lambda m, x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), 192),
        (lambda m, x: F.max_pool1d(x.flatten(2), 3, 2, 1), 2 * 2 * 36),
        (lambda m, x: F.adaptive_max_pool2d(x, (4, 3)), 120),
        (lambda m, x: F.adaptive_max_pool2d(x, (3, 2)), 2 * (8 * 2 * 4 + 3 * 2 * 3)),
    ],
)
def test_functions_are_a_few_operations(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    check_function(function, comparisons)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
    ],
)
def test_other_functions(function: Callable[[Tensor], Tensor]) -> None:
    same(Function(function), SIZE)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 3, 2, padding=1),
        lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.interpolate(x, size=(13, 7), mode="bilinear", align_corners=False),
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=(2.5, 1.3), mode="nearest"),
        lambda x: F.interpolate(x, None, 2, "nearest"),
        lambda x: x.mean([2, 3]),
    ],
)
def test_every_way_of_resampling_is_two_matrices(function: Callable[[Tensor], Tensor]) -> None:
    program = same(Function(function), SIZE)
    assert {type(op) for op in program.operations[1:]} <= {Resample, Reshape}
