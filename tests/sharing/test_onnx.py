"""The exported graph has exactly the planned comparisons and the same output."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import deepshare
from deepshare import Plan, export_onnx, share, zoo
from deepshare.errors import ExportError
from deepshare.sharing.gates import SharedReLU, set_progress
from deepshare.sharing.onnx import count_comparisons

SIZE = (3, 16, 16)


@pytest.fixture(scope="module")
def plan_and_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, nn.Module, Path]:
    torch.manual_seed(0)
    model = zoo.resnet18(width=8, depth=10)
    plan = deepshare.plan(model, SIZE, "5%")
    shared = share(model, plan, start="uniform", generator=torch.Generator().manual_seed(0)).train()
    shared(torch.randn(16, *SIZE))
    path = tmp_path_factory.mktemp("onnx") / "shared.onnx"
    export_onnx(shared, path, SIZE)
    assert shared.training
    return plan, shared.eval(), path


def test_comparisons_in_the_file_equal_the_gates(plan_and_file: tuple[Plan, nn.Module, Path]) -> None:
    plan, _, path = plan_and_file
    assert count_comparisons(path) == plan.gates


@pytest.mark.parametrize("batch", [1, 7])
def test_onnxruntime_agrees_wherever_no_gate_is_near_zero(
    plan_and_file: tuple[Plan, nn.Module, Path], batch: int
) -> None:
    _, shared, path = plan_and_file
    nearest: list[torch.Tensor] = []
    leaders = [m for m in shared.modules() if isinstance(m, SharedReLU) and m.position == 0]
    hooks = [
        leader.register_forward_pre_hook(
            lambda leader, args: nearest.append(args[0][:, : leader.prototypes].abs().flatten(1).amin(1))
        )
        for leader in leaders
    ]
    images = torch.randn(batch, *SIZE)
    with torch.no_grad():
        expected = shared(images)
    for hook in hooks:
        hook.remove()
    far = torch.stack(nearest).amin(0) > 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    assert far.any()
    error = (torch.from_numpy(np.asarray(logits)) - expected)[far].abs().max() / expected[far].abs().max()
    assert error <= 1e-4


def test_soft_gates_are_not_exported(tmp_path: Path) -> None:
    model = zoo.resnet18(width=4, depth=10)
    shared = share(model, deepshare.plan(model, SIZE, "20%"))
    set_progress(shared, 0.5)
    with pytest.raises(ExportError, match="set_progress"):
        export_onnx(shared, tmp_path / "soft.onnx", SIZE)
    assert not list(tmp_path.iterdir())


def test_it_is_one_file(plan_and_file: tuple[Plan, nn.Module, Path]) -> None:
    _, _, path = plan_and_file
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_found_out_first(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="folder that exists"):
        export_onnx(zoo.resnet18(width=4), tmp_path / "no" / "x.onnx", SIZE)
