"""Weights files: what they say of themselves, and every way in which they can be wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepshare.errors import CheckpointError
from deepshare.training.build import lay_out
from deepshare.training.run.checkpoint import WeightsHeader, fill, read_weights, save_weights

LABEL = WeightsHeader("shared", (3, 8, 8), plan="abc", own=True)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    lay_out(model, torch.channels_last)
    save_weights(tmp_path / "model.safetensors", model, LABEL)
    return tmp_path / "model.safetensors"


def test_what_is_saved_is_read(saved: Path) -> None:
    tensors, label = read_weights(saved)
    assert label == LABEL
    assert list(tensors["0.weight"].shape) == [4, 3, 3, 3]
    assert tensors["1.num_batches_tracked"].dtype == torch.int64


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    save_weights(tmp_path / "tied.safetensors", model, LABEL)
    tensors, _ = read_weights(tmp_path / "tied.safetensors")
    assert torch.equal(tensors["0.weight"], tensors["1.weight"])


@pytest.mark.parametrize("where", [0.999, 0.5])
def test_one_wrong_byte_is_found(saved: Path, where: float) -> None:
    content = bytearray(saved.read_bytes())
    content[int(where * len(content))] ^= 1
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_weights(saved)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_weights(saved)


def test_files_of_others_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not written by deepshare"):
        read_weights(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(tmp_path / "none.safetensors")


def test_fill_says_what_differs_and_touches_nothing() -> None:
    model = nn.Linear(2, 3)
    before = model.weight.clone()
    wrong = {"weight": torch.zeros(3, 5), "more": torch.zeros(1)}
    with pytest.raises(
        CheckpointError, match=r"weight has shape \(3, 5\), not \(3, 2\); bias is missing; more is unknown"
    ):
        fill(model, wrong, Path("x"))
    assert torch.equal(model.weight, before)
