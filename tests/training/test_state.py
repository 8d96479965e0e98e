"""The state of an interrupted run."""

import resource
from pathlib import Path

import pytest
import torch

from deepshare.errors import CheckpointError
from deepshare.training.run.checkpoint import ResumeState

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


def test_what_is_saved_is_read(path: Path) -> None:
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
def test_a_truncated_file_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        ResumeState.load(path)


def test_another_version_is_refused(path: Path) -> None:
    torch.save({"version": 99}, path)
    with pytest.raises(CheckpointError, match="another version"):
        ResumeState.load(path)


def test_a_full_disk_keeps_the_last_good_state(path: Path) -> None:
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(CheckpointError, match=r"state\.pt cannot be written \(File too large\).*is kept"):
            STATE.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]
