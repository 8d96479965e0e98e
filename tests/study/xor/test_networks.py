"""The batched networks and their written-out gradients against the real activation and autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from deepshare.sharing.gates import SharedReLU, set_progress
from deepshare.study.xor.networks import ALPHA, BETA, BIAS, OUT, WEIGHT, XorNetworks

NEURONS, NETWORKS, POINTS = 3, 5, 32
PHASED = slice(1, 3)
SHARPNESS = 2.5


@pytest.fixture
def networks() -> XorNetworks:
    draw = torch.randn(6, NEURONS, NETWORKS, dtype=torch.float64)
    offset = torch.randn(NETWORKS, dtype=torch.float64)
    return XorNetworks(draw, offset, torch.ones_like(draw), phased=PHASED, sharpness=SHARPNESS)


def batch() -> tuple[Tensor, Tensor]:
    points = torch.rand(2, POINTS, NETWORKS, dtype=torch.float64) * 2 - 1
    return points, torch.rand(POINTS, NETWORKS, dtype=torch.float64).round()


def as_module(networks: XorNetworks, index: int) -> nn.Sequential:
    """One of the networks, made of PyTorch's layers and SharedReLU."""
    hidden, out = nn.Linear(2, NEURONS).double(), nn.Linear(NEURONS, 1).double()
    shared = SharedReLU(NEURONS, prototypes=1, sharpness=SHARPNESS).double()
    values = networks.neurons[..., index]
    with torch.no_grad():
        hidden.weight.copy_(values[WEIGHT].T)
        hidden.bias.copy_(values[BIAS])
        shared.alpha.copy_(values[ALPHA])
        shared.beta.copy_(values[BETA])
        out.weight.copy_(values[OUT][None])
        out.bias.copy_(networks.offset[index])
    model = nn.Sequential(hidden, shared, out)
    soft = networks.soft if index in range(NETWORKS)[PHASED] else 0
    set_progress(model, 1 - soft / NEURONS)
    return model


def parameters(model: nn.Sequential, of: str = "data") -> tuple[Tensor, Tensor]:
    """The parameters of such a module, or their gradients (of="grad"), as XorNetworks holds them."""
    hidden, shared, out = model
    weight, bias, alpha, beta, last, offset = (
        getattr(p, of) for p in (hidden.weight, hidden.bias, shared.alpha, shared.beta, out.weight, out.bias)
    )
    return torch.cat([weight.T, bias[None], alpha[None], beta[None], last]), offset[0]


@pytest.mark.parametrize("soft", range(NEURONS + 1))
def test_logits_are_those_of_shared_relu(networks: XorNetworks, soft: int) -> None:
    networks.soft = soft
    points, _ = batch()
    logits = networks.forward(points).logits
    for index in range(NETWORKS):
        expected = as_module(networks, index)(points[:, :, index].T)[:, 0]
        torch.testing.assert_close(logits[:, index], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("soft", range(NEURONS + 1))
def test_gradients_are_those_of_autograd(networks: XorNetworks, soft: int) -> None:
    networks.soft = soft
    points, labels = batch()
    by_neurons, by_offset = networks.gradients(points, labels)
    for index in range(NETWORKS):
        model = as_module(networks, index)
        binary_cross_entropy_with_logits(model(points[:, :, index].T)[:, 0], labels[:, index]).backward()
        neurons, offset = parameters(model, "grad")
        torch.testing.assert_close(by_neurons[..., index], neurons, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(by_offset[index], offset, rtol=1e-10, atol=1e-12)


def test_many_steps_are_those_of_torch_sgd_on_each_network(networks: XorNetworks) -> None:
    models = [as_module(networks, index) for index in range(NETWORKS)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(30):
        networks.soft = NEURONS - step // 10
        points, labels = batch()
        networks.step(points, labels, 0.1)
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            set_progress(model, 1 - networks.soft / NEURONS if index in range(NETWORKS)[PHASED] else 1.0)
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(points[:, :, index].T)[:, 0], labels[:, index]).backward()
            optimizer.step()
    for index, model in enumerate(models):
        neurons, offset = parameters(model)
        torch.testing.assert_close(networks.neurons[..., index], neurons, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(networks.offset[index], offset, rtol=1e-8, atol=1e-10)


def test_a_hard_gate_sends_the_prototype_nothing_from_its_replicates(networks: XorNetworks) -> None:
    """Without an output of its own, the prototype learns through soft gates only."""
    networks.neurons[OUT, 0] = 0.0
    reached = {}
    for soft in (0, NEURONS):
        networks.soft = soft
        by_neurons, _ = networks.gradients(*batch())
        reached[soft] = by_neurons[WEIGHT, 0].abs().sum(0) > 0
    assert reached[0].tolist() == [False] * NETWORKS
    assert reached[NEURONS].tolist() == [index in range(NETWORKS)[PHASED] for index in range(NETWORKS)]


def test_what_is_not_learned_keeps_its_value(networks: XorNetworks) -> None:
    networks.learned[ALPHA, :, 2] = networks.learned[:, 2, 4] = 0.0
    before = copy.deepcopy(networks.neurons)
    for _ in range(5):
        networks.step(*batch(), 0.1)
    changed = networks.neurons != before
    assert not changed[networks.learned == 0].any()
    assert changed[networks.learned == 1].double().mean() > 0.9


def test_a_relu_neuron_and_linear_neurons_are_special_cases(networks: XorNetworks) -> None:
    networks.neurons[ALPHA], networks.neurons[BETA] = 0.0, 1.0
    networks.neurons[ALPHA, 0], networks.neurons[BETA, 0] = 1.0, 0.0
    points, _ = batch()
    hidden = torch.einsum("ikn,ipn->kpn", networks.neurons[WEIGHT], points) + networks.neurons[BIAS].unsqueeze(1)
    expected = torch.cat([hidden[:1].relu(), hidden[1:]])
    logits = torch.einsum("kpn,kn->pn", expected, networks.neurons[OUT]) + networks.offset
    torch.testing.assert_close(networks.forward(points).logits, logits)
