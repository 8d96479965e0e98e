"""Gates shared over patches: values, costs and plans."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import deepshare
from deepshare import Plan, count_gates, share, zoo
from deepshare.errors import BudgetError, PlanError
from deepshare.sharing.gates import SharedReLU, set_progress, shared_relus
from deepshare.sharing.onnx import count_comparisons, export_onnx
from deepshare.training.shared_models import plan_of
from tests.sharing.exported import onnx_logits

SIZE = (3, 32, 32)


def test_the_neurons_of_a_patch_share_the_gate_of_its_mean() -> None:
    act = SharedReLU(2, 1, affine=False, patch=2)
    leader = torch.tensor([[1.0, 2.0, -9.0], [-4.0, 1.0, 1.0], [-1.0, 1.0, -5.0]])  # means 0, -4 and 0, -5
    follower = torch.arange(1.0, 10.0).view(3, 3)
    y = act(torch.stack([leader, follower])[None])
    assert y[0, 0].tolist() == [[1, 2, 0], [-4, 1, 0], [-1, 1, 0]]
    assert y[0, 1].tolist() == [[1, 2, 0], [4, 5, 0], [7, 8, 0]]


def test_the_soft_gate_of_a_patch_sends_its_gradient_to_all_of_it() -> None:
    act = SharedReLU(2, 1, affine=False, patch=2)
    act.set_progress(0.0)
    x = torch.zeros(1, 2, 2, 2)
    x[0, 1] = 1.0
    x.requires_grad_()
    act(x)[0, 1].sum().backward()
    assert x.grad is not None
    # Each of four neurons adds phi(0) dmean = phi(0) / 4 to each prototype neuron.
    torch.testing.assert_close(x.grad[0, 0], torch.full((2, 2), 1 / (2 * torch.pi) ** 0.5))


def test_a_patch_of_one_neuron_changes_nothing() -> None:
    model = zoo.resnet18(10, width=4, depth=10).eval()
    plain, patched = deepshare.plan(model, SIZE, "10%"), deepshare.plan(model, SIZE, "10%", patch=1)
    assert plain == patched
    assert plain.to_json() == patched.to_json()
    assert json.loads(plain.to_json())["version"] == 1
    assert "patch" not in plain.to_json()


def test_a_patch_costs_one_gate() -> None:
    model = zoo.resnet18(width=16)
    plan = deepshare.plan(model, SIZE, 6_000, patch=8)
    assert [group.patch for group in plan.groups] == [8, 8, 8, 4]  # the last map is 4x4
    assert [group.gates // group.prototypes for group in plan.groups] == [16, 4, 1, 1]
    assert plan.gates <= 6_000
    odd = deepshare.plan(model, SIZE, 6_000, patch=3)
    assert [group.gates // group.prototypes for group in odd.groups] == [121, 36, 9, 4]
    assert count_gates(share(model, odd), SIZE) == odd.gates <= 6_000
    assert "32x32 by 3x3" in str(odd)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_a_shared_network_runs_in_every_phase_and_counts_what_it_compares(progress: float) -> None:
    model = zoo.resnet18(10, width=4, depth=10)
    plan = deepshare.plan(model, SIZE, 500, patch=2)
    shared = share(model, plan, start="uniform")
    set_progress(shared, progress)
    shared(torch.randn(2, *SIZE)).sum().backward()
    if progress == 1:
        assert count_gates(copy.deepcopy(shared), SIZE) == plan.gates


def test_a_plan_with_patches_travels_through_a_file_and_a_network() -> None:
    model = zoo.resnet18(10, width=4, depth=10)
    plan = deepshare.plan(model, SIZE, 500, patch=2)
    assert json.loads(plan.to_json())["version"] == 2
    assert Plan.from_json(plan.to_json()) == plan
    assert [group.patch for group in plan_of(share(model, plan), SIZE).groups] == [2, 2, 2, 2]
    assert {site.patch for site in shared_relus(share(model, plan))} == {2}


def test_an_exported_network_compares_once_for_a_patch(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten())
    shared = share(model, deepshare.plan(model, (3, 5, 5), 20, patch=2)).eval()
    export_onnx(shared, tmp_path / "model.onnx", (3, 5, 5))
    assert count_comparisons(tmp_path / "model.onnx") == 18
    images = torch.randn(3, 3, 5, 5)
    torch.testing.assert_close(onnx_logits(tmp_path / "model.onnx", images), shared(images))


def test_impossible_patches_are_refused() -> None:
    model = zoo.resnet18(10, width=4, depth=10)
    with pytest.raises(BudgetError, match="give a side of 1 or more"):
        deepshare.plan(model, SIZE, 500, patch=0)
    text = deepshare.plan(model, SIZE, 500, patch=2).to_json().replace('"patch": 2', '"patch": 64')
    with pytest.raises(PlanError, match="patches of 64x64"):
        Plan.from_json(text)
