"""Patch gates against numbers worked by hand."""

from pathlib import Path

import pytest
import torch
from torch import nn

from deepshare.methods.patches import LINEAR, Patch, PatchReLU, patch_cost, patches_of
from deepshare.sharing.convert import count_gates
from deepshare.sharing.onnx import count_comparisons, export_onnx
from deepshare.sharing.sites import Site
from tests.sharing.exported import onnx_logits


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
    images = torch.randn(3, 1, 4, 4)
    torch.testing.assert_close(onnx_logits(tmp_path / "model.onnx", images), model(images))


def test_the_patches_of_a_map_that_is_no_power_of_two() -> None:
    options = patches_of(Site("act", 1, 3, 6, "module"))
    assert options[:2] == [LINEAR, (1, 1)]
    assert (3, 6) in options
    assert len(options) == len(set(options))
