"""AutoReP's hysteresis, its fit of ReLU, its gradients and its penalty, worked by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import zoo
from deepshare.methods.autorep import AutoReP, ReplacedReLU, authors_start, fit_relu, hysteresis, replaced
from deepshare.methods.gated_polynomial import gated
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import Site


def site(*indicators: float, scale: float = 1.0, fit_steps: int = 0) -> ReplacedReLU:
    module = ReplacedReLU(Site("act", 1, 1, len(indicators), "module"), 0.1, scale, fit_steps, 2)
    with torch.no_grad():
        module.indicator.copy_(torch.tensor(indicators).view(1, 1, -1))
        module.square.fill_(2.0)
        module.linear.fill_(3.0)
        module.constant.fill_(1.0)
    return module


def no_images(count: int) -> Tensor:
    raise ValueError("AutoReP looks at no image")


def test_a_gate_changes_only_when_its_indicator_is_well_past_zero() -> None:
    indicator = torch.tensor([0.2, 0.05, 0.0, -0.05, -0.1, -0.2])
    was_open = hysteresis(torch.ones(6, dtype=torch.bool), indicator, 0.1)
    was_shut = hysteresis(torch.zeros(6, dtype=torch.bool), indicator, 0.1)
    assert was_open.int().tolist() == [1, 1, 1, 1, 0, 0]
    assert was_shut.int().tolist() == [1, 0, 0, 0, 0, 0]


def test_a_gate_that_shut_needs_more_than_its_old_indicator_to_open() -> None:
    module = site(0.0)
    x = torch.full((1, 1, 1, 1), -1.0)
    seen = []
    for value in (0.0, -0.2, 0.0, 0.2, 0.0):
        with torch.no_grad():
            module.indicator.fill_(value)
        module.train()(x)
        seen.append(bool(module.mask))
    assert seen == [True, False, False, True, True]
    with torch.no_grad():
        module.indicator.fill_(-1.0)
    module.eval()(x)
    assert bool(module.mask)  # a look at validation images changes nothing


def test_the_fit_at_mean_0_and_variance_1_is_the_quadratic_of_delphi() -> None:
    square, linear, constant = fit_relu(torch.tensor(0.0), torch.tensor(1.0))
    assert square.item() == pytest.approx(1 / (2 * math.sqrt(2 * math.pi)))
    assert linear.item() == pytest.approx(0.5)
    assert constant.item() == pytest.approx(1 / (2 * math.sqrt(2 * math.pi)))


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1.0, 2.0), (-0.5, 0.8), (2.0, 0.75)])
def test_the_fit_is_the_least_squares_solution(mean: float, deviation: float) -> None:
    z = torch.linspace(-8, 8, 20001, dtype=torch.double)
    x, root = mean + deviation * z, torch.exp(-(z**2) / 4)  # the square root of the density
    columns = torch.stack([x**2, x, torch.ones_like(x)], 1) * root[:, None]
    solution = torch.linalg.lstsq(columns, (F.relu(x) * root)[:, None]).solution.flatten()
    fitted = fit_relu(torch.tensor(mean, dtype=torch.double), torch.tensor(deviation**2, dtype=torch.double))
    torch.testing.assert_close(torch.stack(fitted), solution, atol=1e-6, rtol=1e-6)


def test_a_channel_that_hardly_varies_is_fitted_as_if_its_variance_were_a_half() -> None:
    few, enough = (fit_relu(torch.tensor(0.3), torch.tensor(variance)) for variance in (1e-6, 0.5))
    assert torch.equal(torch.stack(few), torch.stack(enough))
    assert few[0].item() == pytest.approx(math.exp(-0.09) / math.sqrt(2 * math.pi) / (2 * math.sqrt(0.5)))


def test_the_scale_of_the_square_is_kept_when_the_gates_are_fixed() -> None:
    model = nn.Sequential(site(1.0, -1.0, scale=0.5)).train()
    x = torch.tensor([-2.0, -2.0]).view(1, 1, 1, 2)
    before = model(x)
    AutoReP((1, 1, 2), gates=1, scale=0.5).on_phase_start(model, "finetune", no_images)
    ((_, fixed),) = gated(model)
    assert (fixed.square.item(), fixed.factors()[0].item()) == (2.0, 1.0)  # a step moves it half as far, as before
    assert model.train()(x).tolist() == before.tolist() == [[[[0.0, -1.0]]]]
    assert model.eval()(x).tolist() == before.tolist()


def test_polynomials_are_fitted_in_the_first_steps_and_left_alone_after() -> None:
    module = site(1.0, 1.0, fit_steps=3).train()
    fitted = []
    for batch in ([-3.0, 5.0], [0.0, 0.0], [10.0, 10.0], [9.0, 9.0]):
        module(torch.tensor(batch).view(1, 1, 1, 2))
        fitted.append(module.linear.item())
    # Steps 0 and 2 fit, to mean 1 and variance 16, then to 0.9 (0.9 x 1) + 0.1 x 10 = 1.81 and 0.81 x 16 = 12.96
    first, third = (fit_relu(torch.tensor(m), torch.tensor(v))[1].item() for m, v in ((1.0, 16.0), (1.81, 12.96)))
    assert fitted == pytest.approx([first, first, third, third])
    assert int(module.steps) == 3


def test_relu_or_polynomial_by_the_mask() -> None:
    module = site(1.0, -1.0, scale=0.5).train()
    x = torch.tensor([-2.0, -2.0]).view(1, 1, 1, 2)
    assert module(x).flatten().tolist() == [0.0, -1.0]  # 0.5 x 2 x 4 - 3 x 2 + 1


def test_the_gradient_of_a_mask_reaches_its_indicator_times_softplus() -> None:
    module = site(1.0, -1.0).train()
    x = torch.tensor([-2.0, 2.0]).view(1, 1, 1, 2)
    module(x).sum().backward()
    assert module.indicator.grad is not None
    # ReLU less polynomial: 0 - (8 - 6 + 1) and 2 - (8 + 6 + 1)
    wanted = F.softplus(torch.tensor([1.0, -1.0])) * torch.tensor([-3.0, -13.0])
    torch.testing.assert_close(module.indicator.grad.flatten(), wanted)


def test_the_penalty_is_on_gates_above_the_budget_alone() -> None:
    model = nn.Sequential(site(1.0, 1.0), site(0.5, -1.0))
    model(torch.zeros(1, 1, 1, 2))
    method = AutoReP((1, 1, 2), gates=1, penalty_weight=8.0)
    penalty = method.penalty(model)
    assert penalty is not None
    assert penalty.item() == pytest.approx(8 * (3 / 4 - 1 / 4))
    penalty.backward()
    gradients = [s.indicator.grad.flatten() for s in replaced(model) if s.indicator.grad is not None]
    torch.testing.assert_close(torch.cat(gradients), 2 * F.softplus(torch.tensor([1.0, 1.0, 0.5, -1.0])))
    met = AutoReP((1, 1, 2), gates=3).penalty(model)
    assert met is not None
    assert met.item() == 0


@pytest.mark.parametrize(("gates", "kept"), [(1, [[0, 1], [0, 0]]), (2, [[1, 1], [0, 0]]), (3, [[1, 1], [1, 0]])])
def test_the_largest_indicators_get_the_gates(gates: int, kept: list[list[int]]) -> None:
    model = nn.Sequential(site(0.5, 0.9), site(0.3, -1.0)).train()
    model(torch.zeros(1, 1, 1, 2))
    method = AutoReP((1, 1, 2), gates=gates)
    before = model.eval()(torch.full((1, 1, 1, 2), -2.0))
    method.on_phase_start(model, "finetune", no_images)
    assert [module.mask.flatten().int().tolist() for _, module in gated(model)] == kept
    if gates == 3:
        torch.testing.assert_close(model.eval()(torch.full((1, 1, 1, 2), -2.0)), before)


def test_a_network_keeps_its_polynomials_and_trains_them() -> None:
    method = AutoReP((3, 8, 8), gates=30, seed=1)
    model = method.convert(zoo.resnet18(10, width=2, depth=10))
    indicators = torch.cat([s.indicator.flatten() for s in replaced(model)])
    assert 0 <= indicators.min() < 0.05 < 0.95 < indicators.max() < 1
    again = torch.cat([s.indicator.flatten() for s in replaced(method.convert(zoo.resnet18(10, width=2, depth=10)))])
    assert torch.equal(indicators, again)
    model(torch.randn(4, 3, 8, 8))
    polynomials = [s.linear.detach().clone() for s in replaced(model)]
    method.on_phase_start(model, "finetune", no_images)
    assert count_gates(model, (3, 8, 8)) == method.measures(model)["gates"] == 30
    assert method.penalty(model) is None
    for (_, module), linear in zip(gated(model), polynomials, strict=True):
        assert torch.equal(module.linear, linear)
        assert isinstance(module.square, nn.Parameter)


def test_the_authors_start_has_less_of_the_square_and_takes_the_variance_for_the_deviation() -> None:
    mean, variance = torch.tensor(0.3), torch.tensor(2.25)
    taken = fit_relu(mean, variance.square())  # whose deviation is that variance
    expected = (taken[0] / 10, taken[1], taken[2] / 5)
    torch.testing.assert_close(authors_start(mean, variance), expected)
    module = ReplacedReLU(Site("act", 1, 1, 4, "module"), 0.1, 0.1, 1, 1, "authors").train()
    x = torch.tensor([-1.0, 0.0, 2.0, 5.0]).view(1, 1, 1, 4)
    module(x)
    fitted = authors_start(x.mean(), x.var(correction=0))
    torch.testing.assert_close(module.square.flatten(), fitted[0].view(1))
    torch.testing.assert_close(module.constant.flatten(), fitted[2].view(1))
    module(x + 1)  # the fitting is over
    torch.testing.assert_close(module.square.flatten(), fitted[0].view(1))
