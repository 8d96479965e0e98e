"""Products, powers, clamps, piecewise linear functions and maxima as operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.private.ir.functions import MAP, check_function


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda m, x: x.mean((2, 3)) * m.scale.flatten() + m.places[:, :, 0, 0], 0),
        (lambda m, x: (x @ m.features.weight.T).flatten(1) @ m.matrix, 0),
        (lambda m, x: torch.addmm(m.matrix[0], x[:, 0, 0, :1], m.matrix[:1], beta=2), 0),
        (lambda m, x: x * m.scale + m.places, 0),
        (lambda m, x: m.places * x - 3, 0),
        (lambda m, x: m.one - x / 3, 0),
        (lambda m, x: sum([x, 0 * x + 1]), 0),
        (lambda m, x: x + x.mean((2, 3), keepdim=True), 0),
        (lambda m, x: x.mean((2, 3), keepdim=True) * x, 0),
        (lambda m, x: x**2 + x.square(), 0),
        (lambda m, x: F.relu6(4 * x), 2 * MAP),
        (lambda m, x: x.clamp(-0.3, 0.4), 2 * MAP),
        (lambda m, x: x.clamp(max=0.1), MAP),
        (lambda m, x: F.hardswish(3 * x), 2 * MAP),
        (lambda m, x: F.leaky_relu(x, 0.2) + m.slopes(x) + x.abs(), 3 * MAP),
        (lambda m, x: torch.max(x, -x) - torch.minimum(x, x / 2), 2 * MAP),
        (lambda m, x: x.max(1)[0] + x.min(dim=1, keepdim=True).values.flatten(1, 2), MAP),
        (lambda m, x: torch.maximum(x, m.scale) + torch.min(m.one, x), 2 * MAP),
        (lambda m, x: x.amax((2, 3)), 2 * (9 * (4 + 2 + 1) + 5 + 3 + 2 + 1)),
    ],
)
def test_functions_are_a_few_operations(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    check_function(function, comparisons)
