"""Checkpoints: weights files and the state of an interrupted run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepshare.errors import CheckpointError
from deepshare.training.build import lay_out
from deepshare.training.run.checkpoint import ResumeState, WeightsHeader, fill, read_weights, save_weights

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


STATE = ResumeState(
    phase="switch",
    epochs=3,
    over=False,
    lines=11,
    best=None,
    model={"w": torch.arange(3000.0)},
    optimiser={"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    method={"lasso": 1e-5},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    STATE.save(tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_a_state_that_is_saved_is_read(path: Path) -> None:
    state = ResumeState.load(path)
    assert (state.phase, state.epochs, state.over, state.lines, state.best) == ("switch", 3, False, 11, None)
    assert torch.equal(state.model["w"], STATE.model["w"])
    assert torch.equal(state.optimiser["state"][0]["momentum_buffer"], torch.ones(2))
    assert state.method == {"lasso": 1e-5}


def test_the_file_needs_no_pickled_code(path: Path) -> None:
    assert torch.load(path, weights_only=True)["phase"] == "switch"


def test_a_wrong_byte_is_found(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        ResumeState.load(path)


@pytest.mark.parametrize("size", [0, 100, -10])
def test_a_truncated_state_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        ResumeState.load(path)


def test_another_version_is_refused(path: Path) -> None:
    torch.save({"version": 99}, path)
    with pytest.raises(CheckpointError, match="another version"):
        ResumeState.load(path)


@pytest.mark.linux
def test_a_full_disk_keeps_the_last_good_state(path: Path) -> None:
    before = path.read_bytes()
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(CheckpointError, match=r"state\.pt cannot be written \(File too large\).*is kept"):
            STATE.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]
