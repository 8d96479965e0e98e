"""SNL's masks, lasso, growth and end, worked by hand."""

import math

import pytest
import torch
from torch import nn

from deepshare import zoo
from deepshare.methods.gated_polynomial import gated
from deepshare.methods.snl import SNL, MaskedReLU, masks
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import Site, find_sites


def masked(*values: float, name: str = "act") -> MaskedReLU:
    module = MaskedReLU(Site(name, 1, 1, len(values), "module"))
    with torch.no_grad():
        module.mask.copy_(torch.tensor(values).view(1, 1, -1))
    return module


def test_a_neuron_is_relu_linear_or_between() -> None:
    module = masked(1.0, 0.0, 0.25, 0.25)
    x = torch.tensor([-2.0, -2.0, -2.0, 4.0]).view(1, 1, 1, 4)
    assert module(x).flatten().tolist() == [0.0, -2.0, -1.5, 4.0]


def test_gradients_of_masks_and_input() -> None:
    module = masked(1.0, 0.25, 0.25)
    x = torch.tensor([-2.0, -3.0, 4.0]).view(1, 1, 1, 3).requires_grad_()
    module(x).sum().backward()
    if module.mask.grad is None or x.grad is None:
        raise ValueError("no gradient")
    assert module.mask.grad.flatten().tolist() == [2.0, 3.0, 0.0]
    assert x.grad.flatten().tolist() == [0.0, 0.75, 1.0]


def test_masks_of_a_linear_layers_output() -> None:
    module = MaskedReLU(Site("act", 3, 1, 1, "module"))
    assert module(torch.tensor([[-1.0, 0.0, 2.0]])).tolist() == [[0.0, 0.0, 2.0]]


def test_the_penalty_is_the_lasso_over_all_sites() -> None:
    model = nn.Sequential(masked(1.0, -0.5), masked(0.25))
    penalty = SNL((1, 1, 2), gates=1, lasso=0.01).penalty(model)
    assert penalty is not None
    assert penalty.item() == pytest.approx(0.0175)
    penalty.backward()
    gradients = [m.mask.grad.flatten().tolist() for m in masks(model) if m.mask.grad is not None]
    assert gradients == [[pytest.approx(0.01), pytest.approx(-0.01)], [pytest.approx(0.01)]]


def test_a_mask_counts_above_the_threshold_only() -> None:
    model = nn.Sequential(masked(1.0, -1.0, 0.0, 0.01, name="a"), masked(0.011, 0.5, name="b"))
    assert SNL((1, 1, 2), gates=1).counts(model) == {"a": 1, "b": 2}
    assert SNL((1, 1, 2), gates=1, threshold=0.2).counts(model) == {"a": 1, "b": 1}


def test_the_lasso_grows_when_the_count_does_not_fall_and_not_before_epoch_5() -> None:
    method = SNL((1, 1, 4), gates=2, lasso=1.0)
    left = [4, 4, 4, 4, 4, 4, 3, 3, 4, 2]
    seen = []
    for epoch, count in enumerate(left):
        ended = method.on_epoch_end(nn.Sequential(masked(*[1.0] * count + [0.0] * (4 - count))), "snl", epoch)
        seen.append((round(method.lasso, 6), ended))
    grown = [1.0] * 5 + [1.1, 1.1, 1.21, 1.331, 1.331]
    assert seen == [(lasso, epoch == 9) for epoch, lasso in enumerate(grown)]


def test_a_resumed_method_goes_on_as_if_it_had_not_stopped() -> None:
    models = [nn.Sequential(masked(*[1.0] * count + [0.0] * (4 - count))) for count in [4, 3, 4, 3, 4, 3, 3, 2, 2]]
    whole, first = SNL((1, 1, 4), gates=1), SNL((1, 1, 4), gates=1)
    for epoch, model in enumerate(models):
        whole.on_epoch_end(model, "snl", epoch)
    for epoch, model in enumerate(models[:6]):
        first.on_epoch_end(model, "snl", epoch)
    second = SNL((1, 1, 4), gates=1)
    second.restore(first.state())
    for epoch, model in enumerate(models[6:], 6):
        second.on_epoch_end(model, "snl", epoch)
    assert second.state() == whole.state() == {"lasso": pytest.approx(1e-5 * 1.1**3), "lowest": 2}


def test_before_the_first_epoch_no_count_is_the_lowest() -> None:
    assert math.isinf(SNL((1, 1, 4), gates=1).state()["lowest"])


def test_a_converted_network_computes_what_it_did() -> None:
    model = zoo.resnet18(10, width=4, depth=10).eval()
    method = SNL((3, 32, 32), gates=1)
    converted = method.convert(model)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(converted(images), model(images))
    sites = find_sites(model, (3, 32, 32))
    assert method.counts(converted) == {site.name: site.neurons for site in sites}
    assert method.measures(converted)["gates"] == sites.neurons
    assert method.measures(converted)["gates.layer1.0.act1"] == 4 * 32 * 32


def test_one_optimiser_trains_weights_and_masks() -> None:
    model = SNL((3, 8, 8), gates=1).convert(zoo.resnet18(10, width=2, depth=10))
    optimiser = SNL((3, 8, 8), gates=1).optimiser(model, lr=1e-3, momentum=0.9, weight_decay=0, kind="adam")
    assert isinstance(optimiser, torch.optim.Adam)
    assert [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups] == [(1e-3, 0)]
    assert {id(p) for group in optimiser.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


def no_images(count: int) -> torch.Tensor:
    raise ValueError("SNL looks at no image")


@pytest.mark.parametrize(
    ("gates", "kept"), [(2, [[0, 1, 0], [1, 0]]), (3, [[0, 1, 0], [1, 1]]), (9, [[1, 1, 1], [1, 1]])]
)
def test_the_largest_masks_get_the_gates(gates: int, kept: list[list[int]]) -> None:
    model = nn.Sequential(masked(0.2, 0.9, -3.0), masked(0.8, 0.3))
    SNL((1, 1, 3), gates=gates).on_phase_start(model, "finetune", no_images)
    assert [module.mask.flatten().int().tolist() for _, module in gated(model)] == kept
    assert not list(masks(model))


def test_fixed_gates_have_neither_lasso_nor_an_early_end() -> None:
    method = SNL((3, 8, 8), gates=20)
    model = method.convert(zoo.resnet18(10, width=2, depth=10))
    method.on_phase_start(model, "search", no_images)
    assert method.counts(model)["layer1.0.act1"] == 2 * 8 * 8
    method.on_phase_start(model, "finetune", no_images)
    assert method.penalty(model) is None
    assert not method.on_epoch_end(model, "finetune", 0)
    assert sum(method.counts(model).values()) == method.measures(model)["gates"] == count_gates(model, (3, 8, 8)) == 20
