"""ReLU at some neurons and a polynomial at the others: values, counts, copies and files."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepshare.errors import UnsupportedModelError
from deepshare.methods.gated_polynomial import GatedPolynomial, gated
from deepshare.sharing.convert import count_gates
from deepshare.sharing.onnx import count_comparisons, export_onnx
from tests.sharing.exported import onnx_logits

MASK = torch.tensor([[[True, False]], [[False, True]]])


def site(mask: Tensor = MASK, *coefficients: Tensor) -> GatedPolynomial:
    module = GatedPolynomial(mask.shape, coefficients or None)
    module.set_mask(mask)
    return module


def network(sparse: GatedPolynomial) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 1), sparse, nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("training", [True, False])
def test_relu_where_the_mask_is_true_and_the_polynomial_elsewhere(training: bool) -> None:
    # a = 0.5, 1 by channel; b = 2; c = -1: at x = -2 the polynomial is 2 - 4 - 1 and 4 - 4 - 1; at 3 it is 14 in b
    module = site(MASK, torch.tensor([0.5, 1.0]).view(2, 1, 1), torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), -1.0))
    x = torch.tensor([[-2.0, -2.0], [3.0, -2.0]]).view(1, 2, 1, 2)
    assert module.train(training)(x).flatten().tolist() == [0.0, -3.0, 14.0, 0.0]


@pytest.mark.parametrize("training", [True, False])
def test_without_coefficients_it_is_the_identity(training: bool) -> None:
    x = torch.tensor([[-2.0, -2.0], [3.0, -2.0]]).view(1, 2, 1, 2)
    assert site().train(training)(x).flatten().tolist() == [0.0, -2.0, 3.0, 0.0]


def test_an_input_without_maps() -> None:
    module = site(torch.tensor([True, False, True]).view(3, 1, 1))
    assert module.eval()(torch.tensor([[-1.0, -2.0, 3.0]])).tolist() == [[0.0, -2.0, 3.0]]


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_input_and_coefficients(training: bool) -> None:
    values = [nn.Parameter(torch.full((2, 1, 1), value)) for value in (0.5, 1.0, 0.0)]
    module = site(MASK, *values).train(training)
    x = torch.tensor([[-2.0, -2.0], [3.0, 4.0]]).view(1, 2, 1, 2).requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0.0, -1.0, 4.0, 1.0]  # 2 a x + b
    gradients = [value.grad.flatten().tolist() for value in values if value.grad is not None]
    assert gradients == [[4.0, 9.0], [-2.0, 3.0], [1.0, 1.0]]  # x^2, x, 1


def test_only_gates_are_compared() -> None:
    assert count_gates(network(site()), (1, 1, 2)) == 2
    assert count_gates(network(site(torch.zeros(2, 1, 2, dtype=torch.bool))), (1, 1, 2)) == 0
    assert count_gates(network(GatedPolynomial((2, 1, 2))), (1, 1, 2)) == 4


def test_weights_carry_the_mask_and_the_count() -> None:
    model = network(GatedPolynomial((2, 1, 2)))
    model.load_state_dict(network(site()).state_dict())
    assert [module.gates for _, module in gated(model)] == [2]
    assert count_gates(copy.deepcopy(model), (1, 1, 2)) == 2


def test_an_exported_network_compares_at_the_gates_alone(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    values = [torch.full((2, 1, 1), value) for value in (0.25, 0.5, 0.125)]
    model = network(site(MASK, *values)).eval()
    export_onnx(model, tmp_path / "model.onnx", (1, 1, 2))
    assert count_comparisons(tmp_path / "model.onnx") == 2
    images = torch.randn(5, 1, 1, 2)
    torch.testing.assert_close(onnx_logits(tmp_path / "model.onnx", images), model(images))


def test_another_size_of_image_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"2x1x2 got an input of shape \(1, 2, 2, 2\)"):
        site()(torch.zeros(1, 2, 2, 2))
