"""Groups led by a later site: sites before it are linear, and no gate is added."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deepshare
from deepshare import zoo
from deepshare.errors import PlanError, PlanMismatchError
from deepshare.private.api import check_plan
from deepshare.private.ir.trace import translate
from deepshare.sharing.convert import count_gates, share
from deepshare.sharing.gates import SharedReLU
from deepshare.sharing.onnx import export_onnx
from deepshare.sharing.plan import Plan
from deepshare.study.report.plan_picture import plan_section

SIZE = (3, 16, 16)
LEADERS = ["layer1.0.act2", "layer3.1.act1"]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return zoo.resnet18(10, width=8).eval()


@pytest.fixture(scope="module")
def plan(network: nn.Module) -> Plan:
    return deepshare.plan(network, SIZE, "5%", leaders=LEADERS)


def test_gates_are_as_many_as_with_the_first_site(network: nn.Module, plan: Plan) -> None:
    first = deepshare.plan(network, SIZE, "5%")
    assert [group.prototypes for group in plan.groups] == [group.prototypes for group in first.groups]
    assert plan.gates == first.gates == count_gates(share(network, plan), SIZE)
    assert [group.leader.name for group in plan.groups] == [
        "layer1.0.act2",
        "layer2.0.act1",
        "layer3.1.act1",
        "layer4.0.act1",
    ]
    assert [len(group.followers) for group in plan.groups] == [2, 3, 1, 3]
    assert "layer3.1.act1 (after 2 linear)" in str(plan)


def test_it_computes_what_the_formula_says() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()).double()
    made = deepshare.plan(model, (2,), 1, leaders=["2"])
    shared = share(model, made, start="uniform", generator=torch.Generator().manual_seed(1))
    leader, follower = (shared.get_submodule(name) for name in ("2", "4"))
    assert isinstance(leader, SharedReLU)
    assert isinstance(follower, SharedReLU)
    x = torch.randn(7, 2, dtype=torch.float64)

    def site(module: SharedReLU, inputs: Tensor, gate: Tensor) -> Tensor:
        return inputs * (module.alpha * gate + module.beta)

    inputs = model[1](x)  # the first site passes x on
    gate = (inputs[:, :1] >= 0).double()
    expected = site(follower, model[3](site(leader, inputs, gate)), gate)
    torch.testing.assert_close(shared(x), expected)


def test_the_file_names_the_leader(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    content = json.loads(plan.to_json())
    assert (content["version"], content["groups"][2]["leader"]) == (3, "layer3.1.act1")
    content["groups"][2]["leader"] = "layer4.0.act1"
    with pytest.raises(PlanError, match="its leader is not one of them"):
        Plan.from_json(json.dumps(content))


def test_a_plan_led_by_first_sites_is_written_as_ever(network: nn.Module) -> None:
    content = json.loads(deepshare.plan(network, SIZE, "5%").to_json())
    assert content["version"] == 1
    assert all(group.keys() == {"prototypes", "sites"} for group in content["groups"])
    patched = json.loads(deepshare.plan(network, SIZE, "5%", patch=2).to_json())
    assert patched["version"] == 2
    assert all(group.keys() == {"prototypes", "sites", "patch"} for group in patched["groups"])


@pytest.mark.parametrize(
    ("leaders", "said"),
    [(["layer9.act"], "no site is named layer9.act"), (["layer1.0.act2", "layer1.1.act1"], "two leaders")],
)
def test_leaders_that_are_none_are_refused(network: nn.Module, leaders: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        deepshare.plan(network, SIZE, "5%", leaders=leaders)


def test_private_inference_and_onnx_have_the_same_gates(network: nn.Module, plan: Plan, tmp_path: Path) -> None:
    shared = share(network, plan, start="uniform", generator=torch.Generator().manual_seed(0)).eval()
    program = translate(shared, SIZE)
    check_plan(program, plan)
    with pytest.raises(PlanMismatchError):
        check_plan(program, deepshare.plan(network, SIZE, "5%"))
    assert sum(operation.comparisons for operation in program.operations) == plan.gates
    images = torch.randn(2, *SIZE, dtype=torch.float64)
    torch.testing.assert_close(program.evaluate(images), shared.double()(images))
    export_onnx(shared.float(), tmp_path / "network.onnx", SIZE)
    assert (tmp_path / "network.onnx").is_file()


def test_the_picture_shows_who_is_linear(plan: Plan) -> None:
    drawn = "".join(plan_section(plan, {}).itertext())
    assert drawn.count("linear") == 3
    assert drawn.count("follows") == sum(len(group.followers) for group in plan.groups)
