"""Plans group, print, save and load, and refuse other models."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from torch import nn

import deepshare
from deepshare import Plan, find_sites, zoo
from deepshare.errors import BudgetError, PlanError, PlanMismatchError, UnsupportedModelError
from deepshare.sharing.plan import Group
from deepshare.sharing.sites import Site

SIZE = (3, 32, 32)


def test_sites_of_equal_shape_form_a_group_led_by_the_first(plan: Plan) -> None:
    assert [group.leader.name for group in plan.groups] == [f"layer{stage}.0.act1" for stage in (1, 2, 3, 4)]
    assert [len(group.followers) for group in plan.groups] == [3, 3, 3, 3]
    assert plan.gates == sum(group.prototypes * group.leader.height**2 for group in plan.groups) == 6_000
    assert plan.neurons == 122_880


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"layer_sharing": False}, [1] * 16),
        ({"max_group": 3}, [3, 1] * 4),
        ({"per_block": True}, [2] * 8),
        ({"per_block": True, "max_group": 1}, [1] * 16),
    ],
)
def test_groups_can_be_cut(network: nn.Module, options: dict[str, Any], sizes: list[int]) -> None:
    cut = deepshare.plan(network, SIZE, 12_000, **options)
    assert [len(group.sites) for group in cut.groups] == sizes


def test_without_weights_every_group_gets_the_same_share(network: nn.Module) -> None:
    plan = deepshare.plan(network, SIZE, "6.25%")
    assert [group.prototypes for group in plan.groups] == [4, 8, 16, 32]


def test_weights_are_summed_over_a_group(network: nn.Module) -> None:
    weights = {site.name: float(site.name.startswith("layer2")) for site in find_sites(network, SIZE)}
    plan = deepshare.plan(network, SIZE, 4_000, weights)
    assert [group.prototypes for group in plan.groups] == [1, 11, 2, 2]  # 80 gates are left: 16 and 64


def test_weights_that_do_not_fit_name_the_sites(network: nn.Module) -> None:
    weights = {site.name: 1.0 for site in find_sites(network, SIZE)}
    weights["layer1.0.act9"] = weights.pop("layer1.0.act1")
    with pytest.raises(BudgetError, match=r"no weight for layer1.0.act1; .*layer1.0.act9 \(nearest: layer1.0.act"):
        deepshare.plan(network, SIZE, 6_000, weights)


def test_the_minimum_without_layer_sharing_is_named(network: nn.Module) -> None:
    with pytest.raises(BudgetError, match="5,440"):
        deepshare.plan(network, SIZE, 5_000, layer_sharing=False)


def test_a_model_without_relu_has_no_plan() -> None:
    with pytest.raises(UnsupportedModelError, match="no ReLU"):
        deepshare.plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU()), SIZE, 10)


def test_it_is_frozen(plan: Plan) -> None:
    with pytest.raises(FrozenInstanceError):
        plan.budget = 1  # type: ignore[misc]


def test_it_prints_its_groups_and_its_sum(plan: Plan) -> None:
    text = str(plan)
    assert "layer1.0.act1" in text
    assert "of 16" in text
    assert text.splitlines()[-1] == "6,000 gates instead of 122,880 (4.88%); 16 sites in 4 groups, input 3x32x32"


def test_what_is_left_of_the_budget_is_said(network: nn.Module) -> None:
    assert "4 of the budget left" in str(deepshare.plan(network, SIZE, 6_004))


def test_another_model_is_refused_with_each_difference(plan: Plan) -> None:
    wider = zoo.resnet18(width=32)
    wider.layer4[1].act2 = nn.Identity()
    with pytest.raises(PlanMismatchError) as caught:
        plan.check(find_sites(wider, SIZE))
    message = str(caught.value)
    assert "no site layer4.1.act2 in the model" in message
    assert "layer1.0.act1 has shape 32x32x32 in the model and 16x32x32 in the plan" in message
    assert message.count(" has shape ") == 15
    assert "\n" not in message


def test_a_network_of_relu6_is_told_the_cure() -> None:
    with pytest.raises(UnsupportedModelError, match="relu6_to_relu"):
        deepshare.plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()), SIZE, 10)


def test_a_group_of_unequal_sites_cannot_be_made() -> None:
    sites = (Site("a", 4, 8, 8, "module"), Site("b", 4, 4, 4, "module"))
    with pytest.raises(PlanError, match="different shapes"):
        Group(1, sites)
