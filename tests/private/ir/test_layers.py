"""Layers and activation modules as operations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.private.ir.program import GatedActivation
from deepshare.private.ir.trace import translate
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.gates import set_progress
from deepshare.sharing.sites import find_sites
from tests.private.ir.functions import SIZE, Function, check_function, same, settled


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda m, x: m.wider(x), 0),
        (lambda m, x: m.line(x.flatten(2)), 0),
        (lambda m, x: m.features(x), 0),
    ],
)
def test_functions_are_a_few_operations(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    check_function(function, comparisons)


def weights(*shape: int) -> Tensor:
    """Some constant."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).double().view(shape)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: F.dropout(x + x, training=False),
        lambda x: x.clone().add_(x).relu_() + x,
        lambda x: F.conv2d(x, weights(4, 2, 2, 4), weights(4), padding="same"),
        lambda x: F.conv2d(x, weights(4, 1, 2, 3), padding="same", dilation=3, groups=2),
        lambda x: F.conv1d(x.flatten(2), weights(4, 2, 4), padding="same"),
        lambda x: F.conv1d(x.flatten(2), weights(4, 2, 4), padding="valid", stride=3),
        lambda x: F.conv_transpose1d(x.flatten(2), weights(2, 3, 4), weights(3), 2, 1, 1, dilation=2),
    ],
)
def test_other_functions(function: Callable[[Tensor], Tensor]) -> None:
    same(Function(function), SIZE)


def test_masks_and_polynomials_of_single_neurons() -> None:
    torch.manual_seed(0)
    base = settled(zoo.resnet18(width=4))
    sites = find_sites(base, (3, 32, 32))

    def activation(site: object) -> nn.Module:
        shape = site.shape  # type: ignore[attr-defined]
        coefficients = [torch.randn(shape[0], 1, 1) * scale for scale in (1e-4, 0.1, 0.1)]
        made = GatedPolynomial(shape, coefficients)
        made.set_mask(torch.rand(shape) < 0.1)
        return made

    model = replace_sites(base, sites, activation).eval()
    program = same(model, (3, 32, 32))
    masks = [op for op in program.operations if isinstance(op, GatedActivation)]
    gates = sum(module.gates for module in model.modules() if isinstance(module, GatedPolynomial))
    assert program.comparisons == gates and all(op.square is not None for op in masks)


class Halved(NeuronActivation):
    """ReLU of the first channel, half of the others: an activation that no file of the package knows."""

    ready = True

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.relu(x[:, :1]), x[:, 1:] / 2], 1)

    def unfinished(self) -> tuple[str, str] | None:
        return None if self.ready else ("it is not ready", "make it ready")

    def form(self) -> NeuronForm:
        zero, half = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.5)
        return NeuronForm(mask=torch.tensor([True, False, False]).view(-1, 1, 1), factors=(zero, half, zero))


def test_an_activation_runs_by_the_form_that_it_offers() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), Halved(), nn.Flatten(), nn.Linear(3 * 6 * 7, 3), halved := Halved()
    ).eval()
    program = same(model, SIZE)
    assert [operation.kind for operation in program.operations].count("GatedActivation") == 2
    assert program.comparisons == 6 * 7 + 1
    halved.ready = False
    with pytest.raises(UnsupportedModelError, match="4: it is not ready: make it ready"):
        translate(model, SIZE)


def test_gates_that_are_not_hard_yet_are_refused() -> None:
    model = zoo.resnet18(width=4)
    shared = share(model, plan(model, (3, 32, 32), "5%"))
    set_progress(shared, 0.5)
    with pytest.raises(UnsupportedModelError, match=r"act1: its gates are not all hard: finish the switch"):
        translate(shared, (3, 32, 32))
