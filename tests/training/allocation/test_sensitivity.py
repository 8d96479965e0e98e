"""What groups weigh by the loss that their gates save, on numbers worked out by hand."""

import math

import pytest
import torch
from torch import nn

from deepshare.sharing.convert import share
from deepshare.sharing.gates import SharedReLU, set_progress
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import plan, split_budget
from deepshare.training.allocation.sensitivity import sensitivities, without, worth

IMAGES = torch.tensor([[1.0, 1.0, 2.0, 3.0], [1.0, -1.0, 2.0, 3.0]])


def one_site(prototypes: int) -> tuple[nn.Module, Plan]:
    model = nn.Sequential(nn.ReLU())
    made = plan(model, (4,), prototypes)
    return share(model, made), made


def test_the_later_half_of_the_prototypes_is_made_constant() -> None:
    network, made = one_site(2)
    # Channels 1 and 3 read prototype 1, which is open in one image of two.
    assert network(IMAGES).tolist() == [[1, 1, 2, 3], [1, 0, 2, 0]]
    halved = without(network, made.groups[0], 1, torch.tensor([1.0, 0.5]))
    assert halved(IMAGES).tolist() == [[1, 0.5, 2, 1.5], [1, -0.5, 2, 1.5]]
    assert network(IMAGES).tolist() == [[1, 1, 2, 3], [1, 0, 2, 0]]


def test_the_rise_of_the_loss_over_what_was_lost() -> None:
    network, made = one_site(2)
    found = sensitivities(network, made, lambda changed: -float(changed(IMAGES).detach().sum()))
    # The outputs add up to 10, and to 9 with channels 1 and 3 at half their inputs: 1 for a second prototype's 1/2.
    assert found == {"0": pytest.approx(1 / 0.5)}


def test_a_loss_that_falls_is_no_reason_for_a_negative_weight() -> None:
    network, made = one_site(2)
    assert sensitivities(network, made, lambda changed: float(changed(IMAGES).detach().sum())) == {"0": 0}


def test_the_only_prototype_is_lost_and_means_are_of_soft_gates_where_they_are_soft() -> None:
    network, made = one_site(1)
    set_progress(network, 0)
    mean = 0.5 * (1 + math.erf(1 / math.sqrt(2)))  # Phi(1) in both images
    seen: list[float] = []

    def loss(changed: nn.Module) -> float:
        seen.append(float(changed(IMAGES).detach().sum()))
        return -seen[-1]

    assert sensitivities(network, made, loss)["0"] == pytest.approx(0, abs=1e-5)  # its gate is constant anyway
    assert seen == [pytest.approx(mean * 12), pytest.approx(mean * 12)]


def test_followers_lose_the_same_gates_and_groups_are_told_apart() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU())
    made = plan(model, (4,), 3, {"0": 2, "2": 0, "4": 1})
    assert [group.prototypes for group in made.groups] == [2, 1]
    network = share(model, made)
    changed = without(network, made.groups[0], 1, torch.tensor([0.25, 0.75]))
    for name in ("0", "2"):
        site = changed.get_submodule(name)
        assert isinstance(site, SharedReLU)
        assert site.alpha.tolist() == [1, 0, 1, 0]
        assert site.beta.tolist() == [0, 0.75, 0, 0.75]
    last = changed.get_submodule("4")
    assert isinstance(last, SharedReLU)
    assert last.alpha.tolist() == [1, 1]
    assert set(sensitivities(network, made, lambda net: float(net(IMAGES).detach().square().sum()))) == {"0", "2", "4"}


def test_gates_in_proportion_to_the_weights_are_worth_the_same_at_the_margin() -> None:
    # With a/k for the k-th prototype, no move of a gate between groups should lower a loss of -a (1 + ... + 1/P).
    weights, units, caps = [6.0, 3.0, 1.0], [4, 2, 1], [64, 64, 64]
    counts = split_budget(units, caps, weights, 100)
    best = [round(100 * weight / 10 / unit) for weight, unit in zip(weights, units, strict=True)]
    assert counts == best == [15, 15, 10]

    def value(counts: list[int]) -> float:
        return sum(weight * worth(0, count) for weight, count in zip(weights, counts, strict=True))

    others = [[15 + a, 15 + b, 10 - 4 * a - 2 * b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
    assert max(value(other) for other in others) == pytest.approx(value(counts), rel=2e-3)


def test_many_prototypes_are_worth_a_logarithm() -> None:
    assert worth(0, 1) == 1
    assert worth(512, 1024) == pytest.approx(math.log(2), abs=1e-3)
