"""Products, powers, clamps, piecewise linear functions and maxima as operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.program import Weighted
from deepshare.private.ir.trace import translate
from tests.private.ir.functions import MAP, SIZE, Function, check_function, same


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


def constant(*shape: int) -> Tensor:
    """Some matrix."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).double().view(shape)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: constant(5, 8) @ x,
        lambda x: torch.bmm(x.flatten(2), constant(72, 3).expand(len(x), -1, -1)),
        lambda x: torch.bmm(constant(3, 2).expand(len(x), -1, -1), x.flatten(2)),
        lambda x: torch.einsum("nchw,cd->ndhw", x, constant(2, 3)),
        lambda x: torch.einsum("dw, nchw -> nhdc", constant(3, 9), x),
        lambda x: torch.einsum("nchw,hwab->nacb", x, constant(8, 9, 2, 3)),
        lambda x: torch.einsum("chwk,nchw->nk", constant(2, 8, 9, 4), x),
        lambda x: torch.einsum("nchw,c->nhw", [x, constant(2)]),
    ],
)
def test_products_with_constants_are_linear_layers(function: Callable[[Tensor], Tensor]) -> None:
    program = same(Function(function), SIZE)
    assert any(isinstance(operation, Weighted) for operation in program.operations) and not program.comparisons


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.einsum("nchw,c->nchw", x, constant(2)), "einsum nchw,c->nchw: sum over dimensions that both"),
        (lambda x: torch.einsum("...w,wd->...d", x, constant(9, 2)), "give two tensors, and write all letters"),
        (lambda x: constant(5, 1).expand(5, len(x)) @ x.flatten(1), "across images"),
        (lambda x: x.mH, "calls mH, which private inference does not know"),
        (lambda x: torch.tensor(x.tolist()), "a tensor that does not come from the image by functions of torch"),
    ],
)
def test_other_products_and_results_are_refused_by_name(function: Callable[[Tensor], Tensor], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        translate(Function(function), SIZE)
