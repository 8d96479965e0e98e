"""Plans group, print, save and load, and refuse other models."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import deepshare
from deepshare import Plan, find_sites, zoo
from deepshare.errors import BudgetError, PlanError, PlanMismatchError, UnsupportedModelError
from deepshare.sharing.plan import Group
from deepshare.sharing.sites import Site

SIZE = (3, 32, 32)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return zoo.resnet18(width=16)


@pytest.fixture(scope="module")
def plan(network: nn.Module) -> Plan:
    return deepshare.plan(network, SIZE, 6_000)


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


@pytest.mark.parametrize("options", [{}, {"mapping": "contiguous", "affine": False}, {"per_block": True}])
def test_it_comes_back_from_json_as_it_was(network: nn.Module, tmp_path: Path, options: dict[str, Any]) -> None:
    plan = deepshare.plan(network, SIZE, 8_000, **options)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


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


def edited(plan: Plan, *path: str | int, value: Any) -> str:
    content: Any = json.loads(plan.to_json())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 4, "version 4 .*update deepshare"),
        (("version",), 3, "patch is None"),
        (("version",), 2, "patch is None"),
        (("version",), "1", "version is '1'"),
        (("version",), None, "version is None"),
        (("groups", 0, "sites", 0, "kind"), "nonsense", "reached as 'nonsense'"),
        (("budget",), 10**12, "edited by hand"),
        (("input_size",), [], "input size"),
        (("format",), "something", "not a plan"),
        (("groups", 0, "prototypes"), 17, "17 prototypes"),
        (("groups", 0, "prototypes"), 0, "prototypes is 0"),
        (("groups", 0, "prototypes"), 2.5, "prototypes is 2.5"),
        (("groups", 0, "prototypes"), 4, "edited by hand"),
        (("groups", 0, "sites", 1, "channels"), 8, "different shapes"),
        (("groups", 0, "sites", 1, "name"), "layer1.0.act1", "more than once"),
        (("groups", 0, "sites"), [], "no site"),
        (("groups",), [], "no group"),
        (("groups",), None, "groups is None"),
        (("mapping",), "random", "mapping 'random'"),
        (("budget",), 5_999, "edited by hand"),
        (("input_size",), [3, -32, 32], "input size"),
    ],
)
def test_an_edited_file_is_refused(plan: Plan, tmp_path: Path, path: tuple[str, ...], value: Any, said: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(edited(plan, *path, value=value))
    with pytest.raises(PlanError, match=said) as caught:
        Plan.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_a_truncated_file_is_refused(plan: Plan, tmp_path: Path, cut: int) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json()[:cut].rstrip())
    with pytest.raises(PlanError, match=str(file)):
        Plan.load(file)


@pytest.mark.parametrize("text", ["1" * 5_000, "[" * 100_000])
def test_json_that_python_refuses_is_one_line(text: str) -> None:
    with pytest.raises(PlanError, match="not valid JSON"):
        Plan.from_json(text)


def test_a_network_of_relu6_is_told_the_cure() -> None:
    with pytest.raises(UnsupportedModelError, match="relu6_to_relu"):
        deepshare.plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()), SIZE, 10)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes", "missing", "."):
        with pytest.raises(PlanError, match="cannot read"):
            Plan.load(tmp_path / name)


def test_a_file_that_cannot_be_written(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot write"):
        plan.save(tmp_path / "no" / "plan.json")


def test_a_group_of_unequal_sites_cannot_be_made() -> None:
    sites = (Site("a", 4, 8, 8, "module"), Site("b", 4, 4, 4, "module"))
    with pytest.raises(PlanError, match="different shapes"):
        Group(1, sites)
