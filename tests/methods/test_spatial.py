"""Patches by distortion: the distortion itself, and the choice within the budget."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.methods.patches import LINEAR, Patch, PatchReLU, patch_cost, patched, patches_of
from deepshare.methods.spatial import Spatial, distortion
from deepshare.sharing.convert import count_gates
from deepshare.sharing.onnx import count_comparisons, export_onnx
from deepshare.sharing.sites import Site
from tests.methods.brute_force import brute_force


def site(*patches: Patch, size: tuple[int, int] = (2, 2)) -> PatchReLU:
    module = PatchReLU(Site("act", len(patches), *size, "module"))
    module.set_patches(torch.tensor(patches))
    return module


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


@pytest.mark.slow
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
