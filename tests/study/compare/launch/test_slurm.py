"""Runs of a study as SLURM jobs, requeued and resumed."""

import os
import signal
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError, DeepShareError
from deepshare.study.compare.launch.slurm import Resources, submit
from deepshare.study.compare.runner import Limits, Runner
from deepshare.study.compare.study_file import Job
from deepshare.training.reporter import Reporter
from tests.study.compare.launch.fake_slurm import FakeSlurm
from tests.study.compare.launch.three_runs import (
    FIRST,
    LONG,
    SECOND,
    TEACHER,
    epochs_of,
    results,
    runner_of,
    three_runs,
    wait_until,
)

pytest.importorskip("submitit", reason="jobs are launched by submitit")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def test_an_array_behind_the_teacher_is_queued_again(slurm: FakeSlurm, plain: Runner, tmp_path: Path) -> None:
    runner = runner_of(three_runs(tmp_path, LONG), tmp_path)
    ids = submit(runner, Limits(), Resources("long", hours=1.5, cores=8, at_once=1), Reporter)
    assert {job.name: number for job, number in ids.items()} == {TEACHER: "1", FIRST: "2_0", SECOND: "2_1"}
    alone, array = slurm.options(1), slurm.options(2)
    asked = {"partition": "long", "time": "90", "gpus-per-node": "1", "cpus-per-task": "8", "nodes": "1"}
    assert asked.items() <= alone.items() and asked.items() <= array.items()
    assert "array" not in alone and "dependency" not in alone
    assert (array["array"], array["dependency"], array["kill-on-invalid-dep"]) == ("0-1%1", "afterok:1", "yes")

    slurm.queued("1", "2_0", "2_1")
    assert submit(runner, Limits(), Resources(), Reporter) == {}
    slurm.run(1)
    running = slurm.start(2, task=0)
    wait_until(lambda: epochs_of(runner, FIRST) > 0, "an epoch")
    os.killpg(running.pid, signal.SIGUSR2)  # what SLURM sends before it ends a job
    running.wait()
    wait_until(lambda: (slurm.folder / "requeued").exists(), "queued again", 60)
    assert (slurm.folder / "requeued").read_text() == "requeue 2_0\n"
    wait_until(lambda: not runner.workspace.is_running(Job("snl", "few", 96)), "at rest", 60)
    assert {job.name for job in runner.outcomes()} == {TEACHER}
    slurm.run(2, task=0)
    assert {job.name for job in runner.outcomes()} == {TEACHER, FIRST}

    slurm.queued()  # the third was lost
    assert [job.name for job in submit(runner, Limits(), Resources(gpus=0), Reporter)] == [SECOND]
    assert {"array", "dependency", "partition", "gpus-per-node"} & set(slurm.options(3)) == set()
    slurm.run(3)
    assert results(runner) == results(plain)
    assert submit(runner, Limits(), Resources(), Reporter) == {}
    assert slurm.submissions == 3


def test_slurm_that_refuses_is_quoted(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "refuse").touch()
    runner = runner_of(three_runs(tmp_path), tmp_path)
    with pytest.raises(DeepShareError, match=r"^SLURM refused the runs: invalid partition specified: none$"):
        submit(runner, Limits(), Resources("none"), Reporter)
    assert not (runner.workspace.work / "slurm.json").exists()


def test_a_damaged_record_of_jobs_is_named(slurm: FakeSlurm, tmp_path: Path) -> None:
    runner = runner_of(three_runs(tmp_path), tmp_path)
    runner.workspace.work.mkdir(parents=True)
    (runner.workspace.work / "slurm.json").write_text('{"few')
    with pytest.raises(CheckpointError, match=r"slurm\.json is damaged: check with squeue"):
        submit(runner, Limits(), Resources(), Reporter)
    assert slurm.submissions == 0
