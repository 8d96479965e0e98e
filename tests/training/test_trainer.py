"""Runs that are interrupted, by kill -9 or anywhere in the writing of a file, end as if they had not been."""

import errno
import json
import multiprocessing
import os
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare.errors import CheckpointError
from deepshare.training.api import fit
from deepshare.training.loop import EpochMeans, PhaseContext, TrainContext, train_epoch
from deepshare.training.run.checkpoint import ResumeState
from tests.training.small_runs import small_recipe

pytestmark = pytest.mark.linux

PHASES = ("teacher", "gelu", "switch", "finetune")


def train(out: Path, epochs: int) -> None:
    torch.set_num_threads(1)
    fit(recipe=small_recipe(**{f"{phase}__epochs": epochs for phase in PHASES}), out=out, resume=True)


def record(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same(folder: Path, expected: Path) -> None:
    for name in ("model.safetensors", "best.safetensors", "teacher/model.safetensors", "plan.json", "recipe.toml"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    assert record(folder) == record(expected)
    assert record(folder / "teacher") == record(expected / "teacher")
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in expected.iterdir())


@pytest.fixture(scope="module")
def processes() -> Any:
    # The imports are paid once; every child is a process of its own.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deepshare.training.api"])
    return context


def wait_for(file: Path, lines: int, process: BaseProcess) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.is_alive():
        if file.exists() and file.read_text().count("\n") >= lines:
            return
        time.sleep(0.002)
    raise AssertionError(f"{file} never had {lines} lines")


def test_killed_at_a_random_point_of_each_phase(processes: Any, tmp_path: Path, chance: random.Random) -> None:
    out = tmp_path / "run"
    # Somewhere in the second epoch of each phase or later, long before its end: lines that are there, then some time.
    for file, first in (
        ("teacher/metrics.jsonl", 0),
        ("metrics.jsonl", 0),
        ("metrics.jsonl", 8),
        ("metrics.jsonl", 16),
    ):
        process = processes.Process(target=train, args=(out, 8))
        process.start()
        wait_for(out / file, first + chance.choice((1, 2)), process)
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -9
        assert not (out / "model.safetensors").exists()
    train(out, 8)
    train(tmp_path / "uninterrupted", 8)
    assert_same(out, tmp_path / "uninterrupted")


class PowerCut(BaseException):
    """The end of everything, at a moment of our choice."""


class Writes:
    """The files that a run writes, in order; may cut the power at one of them."""

    def __init__(self, folder: Path, cut_at: str | None = None) -> None:
        self.folder, self.cut_at = folder, cut_at
        self.done: list[str] = []

    def __call__(self, source: str, target: Path) -> None:
        name = str(Path(target).relative_to(self.folder))
        before = sum(done.startswith(name) for done in self.done)
        self.done.append(f"{name} {before + 1}" if name == "state.pt" else name)  # there is one in each phase
        if self.done[-1] == self.cut_at:
            Path(source).with_name(f".{Path(target).name}.left").write_bytes(b"half")
            raise PowerCut
        Path(source).rename(target)


WRITES = (
    *("recipe.toml", "environment.json", "plan.json", "images.json"),
    *("teacher/recipe.toml", "teacher/environment.json", "teacher/images.json"),
    *("teacher/best.safetensors", "teacher/state.pt", "teacher/model.safetensors"),
    *("gelu.safetensors", "state.pt 1", "state.pt 2", "best.safetensors", "state.pt 3"),
    *("model.safetensors", "result.json"),
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    writes = Writes(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", writes)
        train(folder, 1)
    assert tuple(writes.done) == WRITES  # so that none is left out below
    return folder


@pytest.mark.parametrize("write", WRITES)
def test_interrupted_at_any_write(
    write: str, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Writes(tmp_path / "run", cut_at=write))
        with pytest.raises(PowerCut):
            train(tmp_path / "run", 1)
    train(tmp_path / "run", 1)
    assert_same(tmp_path / "run", uninterrupted)


def test_a_full_disk_stops_the_run_which_can_be_resumed(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "run" / "state.pt"
    fsync = os.fsync

    def full(file: int) -> None:
        if state.exists() and ResumeState.load(state).phase == "switch":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            CheckpointError, match=r"cannot be written \(No space left on device\).*make room and resume"
        ):
            train(tmp_path / "run", 1)
    assert ResumeState.load(state).phase == "switch"
    train(tmp_path / "run", 1)
    assert_same(tmp_path / "run", uninterrupted)


def cut_in_switch(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("deepshare.training.trainer.train_epoch", stop_in_switch)
        with pytest.raises(PowerCut):
            train(out, 1)


def test_a_damaged_state_is_refused_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    cut_in_switch(out, monkeypatch)
    state = out / "state.pt"
    state.write_bytes(state.read_bytes()[:-100])
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        train(out, 1)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}


@pytest.mark.parametrize("content", [b"", b'{"phase": "gelu", "ep', None])
def test_a_record_that_has_lost_lines_is_refused_and_left_alone(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    cut_in_switch(out, monkeypatch)
    if content is None:
        (out / "metrics.jsonl").unlink()
    else:
        (out / "metrics.jsonl").write_bytes(content)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged \(0 lines of 1 can be read\)"):
        train(out, 1)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}


def test_a_record_without_its_last_line_end_is_mended(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    cut_in_switch(out, monkeypatch)
    record = out / "metrics.jsonl"
    record.write_bytes(record.read_bytes().removesuffix(b"\n"))
    train(out, 1)
    assert_same(out, uninterrupted)


def stop_in_switch(context: TrainContext, phase: PhaseContext, epoch: int) -> EpochMeans:
    if phase.name == "switch":
        raise PowerCut
    return train_epoch(context, phase, epoch)
