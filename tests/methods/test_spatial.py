"""Patch gates, their distortion and the knapsack, against numbers worked by hand and brute force."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.errors import BudgetError
from deepshare.methods import knapsack
from deepshare.methods.patches import LINEAR, Patch, PatchReLU, patch_cost, patched, patches_of
from deepshare.methods.spatial import Spatial, distortion
from deepshare.sharing.convert import count_gates
from deepshare.sharing.onnx import count_comparisons, export_onnx
from deepshare.sharing.sites import Site


def site(*patches: Patch, size: tuple[int, int] = (2, 2)) -> PatchReLU:
    module = PatchReLU(Site("act", len(patches), *size, "module"))
    module.set_patches(torch.tensor(patches))
    return module


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ((1, 1), [[0, 2], [0, 3]]),
        ((1, 2), [[-1, 2], [0, 0]]),  # rows: the means are 0.5 and -0.5
        ((2, 1), [[0, 2], [0, 3]]),  # columns: -2.5 and 2.5
        ((2, 2), [[0, 0], [0, 0]]),  # the mean is exactly 0, and the gate is open above it only
        (LINEAR, [[-1, 2], [-4, 3]]),
    ],
)
def test_a_patch_has_the_gate_of_its_mean(patch: Patch, expected: list[list[float]]) -> None:
    x = torch.tensor([[-1.0, 2.0], [-4.0, 3.0]]).view(1, 1, 2, 2)
    assert site(patch)(x)[0, 0].tolist() == expected


def test_patches_at_the_edge_are_smaller() -> None:
    x = torch.tensor([[5.0, -6.0, 1.0], [1.0, 1.0, -2.0], [-1.0, 2.0, -3.0]]).view(1, 1, 3, 3)
    # The means are 0.25 and -0.5 above, 0.5 and -3 below.
    assert site((2, 2), size=(3, 3))(x)[0, 0].tolist() == [[5, -6, 0], [1, 1, 0], [-1, 2, 0]]
    assert patch_cost(Site("act", 1, 3, 3, "module"), (2, 2)) == 4


def test_channels_with_patches_of_their_own_and_a_gradient_through_the_gated_alone() -> None:
    x = torch.tensor([[-1.0, 2.0], [-4.0, 3.0]]).expand(1, 4, 2, 2).clone().requires_grad_()
    act = site((1, 2), (1, 1), LINEAR, (1, 2))
    y = act(x)
    assert y[0].flatten(1).tolist() == [[-1, 2, 0, 0], [0, 2, 0, 3], [-1, 2, -4, 3], [-1, 2, 0, 0]]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad[0].flatten(1).tolist() == [[1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_only_patches_are_compared(tmp_path: Path) -> None:
    patches = [(2, 2), (1, 1), LINEAR, (2, 4), (3, 3)]
    model = nn.Sequential(nn.Conv2d(1, 5, 1), site(*patches, size=(4, 4)), nn.Flatten(), nn.Linear(80, 2)).eval()
    assert count_gates(model, (1, 4, 4)) == 4 + 16 + 0 + 2 + 4
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    export_onnx(model, tmp_path / "model.onnx", (1, 4, 4))
    assert count_comparisons(tmp_path / "model.onnx") == 26
    session = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed").InferenceSession(
        tmp_path / "model.onnx"
    )
    images = torch.randn(3, 1, 4, 4)
    (logits,) = session.run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(images))


def test_the_patches_of_a_map_that_is_no_power_of_two() -> None:
    options = patches_of(Site("act", 1, 3, 6, "module"))
    assert options[:2] == [LINEAR, (1, 1)]
    assert (3, 6) in options
    assert len(options) == len(set(options))


def brute_force(costs: list[list[int]], losses: list[list[float]], budget: int) -> float:
    return min(
        sum(loss[choice] for loss, choice in zip(losses, choices, strict=True))
        for choices in product(*(range(len(cost)) for cost in costs))
        if sum(cost[choice] for cost, choice in zip(costs, choices, strict=True)) <= budget
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_knapsack_is_as_good_as_brute_force(seed: int) -> None:
    chance = np.random.default_rng(seed)
    items = int(chance.integers(1, 7))
    costs = [[0, *chance.integers(0, 12, int(chance.integers(1, 5))).tolist()] for _ in range(items)]
    losses = [chance.random(len(cost)).round(2).tolist() for cost in costs]
    budget = int(chance.integers(1, 30))
    chosen = knapsack.choose(costs, losses, budget)
    assert sum(cost[choice] for cost, choice in zip(costs, chosen, strict=True)) <= budget
    found = sum(loss[choice] for loss, choice in zip(losses, chosen, strict=True))
    assert found == pytest.approx(brute_force(costs, losses, budget))


def test_a_large_budget_is_kept_though_counted_in_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "MAX_COLUMNS", 16)
    costs, losses = [[100, 33, 0]] * 5, [[0.0, 1.0, 4.0]] * 5
    chosen = knapsack.choose(costs, losses, 300)
    spent = sum(costs[0][choice] for choice in chosen)
    assert 200 < spent <= 300


def test_a_budget_below_the_cheapest_choices_is_refused() -> None:
    with pytest.raises(BudgetError, match="cheapest choices cost 5 and the budget is 4"):
        knapsack.choose([[2, 3], [3, 4]], [[1.0, 0.0], [1.0, 0.0]], 4)


def features(model: nn.Module, images: Tensor) -> Tensor:
    """What the last site gives."""
    seen: list[Tensor] = []
    handle = patched(model)[-1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        model(images)
    handle.remove()
    return seen[0]


def test_the_distortion_is_that_of_the_last_site_with_one_channel_replaced() -> None:
    torch.manual_seed(0)
    model = Spatial((3, 8, 8), gates=1).convert(zoo.resnet18(10, width=2, depth=10)).eval()
    images = torch.randn(5, 3, 8, 8)
    tables = list(distortion(model, images))
    clean = features(model, images)
    for position, channel, option in ((0, 1, 0), (1, 0, 3), (4, 2, 2), (7, 5, 0)):
        changed = patched(model)[position]
        patches = torch.ones_like(changed.patches)
        patches[channel] = torch.tensor(patches_of(changed.site)[option])
        changed.set_patches(patches)
        expected = (features(model, images) - clean).square().mean()
        torch.testing.assert_close(tables[position][channel, option], expected)
        changed.set_patches(torch.ones_like(patches))
    assert [table.shape for table in tables] == [(s.site.channels, len(patches_of(s.site))) for s in patched(model)]


def test_segmentation_is_distorted_at_its_logits() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 1))
    converted = Spatial((1, 4, 4), gates=1).convert(model).eval()
    images = torch.randn(2, 1, 4, 4)
    (table,) = distortion(converted, images)
    clean = converted(images)
    patched(converted)[0].set_patches(torch.tensor([LINEAR, (1, 1)]))
    torch.testing.assert_close(table[0, 0], (converted(images) - clean).square().mean())


def test_a_segmentation_network_has_its_patches_within_the_budget_and_exports_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = zoo.build("deeplabv3-mobilenetv2", num_classes=3, width=0.25, aspp_width=8)
    method = Spatial((3, 32, 32), gates=2000, samples=1, channels=1)
    model = method.convert(network)
    method.on_phase_start(model, "finetune", lambda count: torch.randn(count, 3, 32, 32))
    assert model.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 3, 32, 32)
    assert 1900 < count_gates(model, (3, 32, 32)) <= 2000
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    export_onnx(model, tmp_path / "model.onnx", (3, 32, 32))
    assert count_comparisons(tmp_path / "model.onnx") == count_gates(model, (3, 32, 32))


def test_images_are_taken_few_at_a_time_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Spatial((1, 4, 4), gates=1).convert(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1))).eval()
    images = torch.randn(5, 1, 4, 4)
    (whole,) = distortion(model, images)
    monkeypatch.setattr("deepshare.methods.spatial.PIXELS", 2 * 16)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    (parts,) = distortion(model, images)
    assert set(seen) == {1, 2}
    torch.testing.assert_close(parts, whole)


def test_the_chosen_patches_distort_least_of_all_within_the_budget() -> None:
    torch.manual_seed(0)
    last = nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        last.weight *= torch.tensor([0.1, 1.0, 5.0]).view(1, 3, 1, 1)  # unequal channels
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), last)
    images = torch.randn(8, 1, 2, 2)
    method = Spatial((1, 2, 2), gates=6, samples=8)
    converted = method.convert(model)
    (table,) = distortion(converted.eval(), images)
    method.on_phase_start(converted, "finetune", lambda count: images[:count])
    (act,) = patched(converted)
    options = patches_of(act.site)
    costs = [[patch_cost(act.site, patch) for patch in options]] * 3
    chosen = [options.index((int(height), int(width))) for height, width in act.patches]
    found = sum(table[channel, choice].item() for channel, choice in enumerate(chosen))
    assert found == pytest.approx(brute_force(costs, table.double().tolist(), 6))
    assert len(set(chosen)) > 1
    assert costs[0][chosen[2]] == 4  # the channel that matters most has a gate for each neuron


def test_patches_are_chosen_within_the_budget() -> None:
    torch.manual_seed(0)
    method = Spatial((3, 8, 8), gates=100, samples=4)
    model = method.convert(zoo.resnet18(10, width=4, depth=10))
    method.on_phase_start(model, "finetune", lambda count: torch.randn(count, 3, 8, 8))
    assert 90 < count_gates(model, (3, 8, 8)) == method.measures(model)["gates"] <= 100
    everything = Spatial((3, 8, 8), gates=4 * 8 * 8 * 4, samples=4)
    everything.on_phase_start(model, "finetune", lambda count: torch.randn(count, 3, 8, 8))
    assert model.training
