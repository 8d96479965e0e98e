"""Runs of a study as processes on this machine, killed and resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepshare.errors import DataError, DeepShareError
from deepshare.study.compare.launch.local import run_local, visible_gpus
from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.run import Workspace
from deepshare.study.compare.runner import Limits, Runner
from deepshare.study.compare.study_file import Job, load_study
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from deepshare.training.reporter import Reporter
from tests.study.compare.digits import TEACHER_KEYS
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


def launch(runner: Runner) -> list[str]:
    """Run, and give the names of what was run."""
    done: list[RunOutcome] = []
    run_local(runner, Limits(), 2, Reporter, done.append)
    return [outcome.job.name for outcome in done]


def test_two_at_a_time_killed_and_launched_again(plain: Runner, tmp_path: Path) -> None:
    study = three_runs(tmp_path, LONG)
    runner = runner_of(study, tmp_path)
    flags = [
        "--study",
        study,
        "--out",
        runner.out,
        "--work",
        runner.workspace.work,
        "--launch",
        "local",
        "--at-once",
        2,
    ]
    command = [sys.executable, "-m", "deepshare", "compare", *map(str, flags)]
    first = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def both_run() -> bool:
        states = {job.name: state for job, state, _ in runner.states()}
        return states[FIRST] == states[SECOND] == "running" and epochs_of(runner, FIRST) > 0

    wait_until(both_run, "two runs at the same time")
    with pytest.raises(DeepShareError, match="another deepshare compare is running"):
        launch(runner)
    os.killpg(first.pid, signal.SIGKILL)
    _, said = first.communicate()
    started = [line.partition(":")[0] for line in said.splitlines() if ": started, log in" in line]
    assert started == [TEACHER, FIRST, SECOND]
    wait_until(lambda: not any(state == "running" for _, state, _ in runner.states()), "at rest", 10)
    assert [job.name for job in runner.outcomes()] == [TEACHER]

    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    started = [line.partition(":")[0] for line in again.stderr.splitlines() if ": started, log in" in line]
    assert started == [FIRST, SECOND]  # the teacher had its result
    assert results(runner) == results(plain)
    assert launch(runner) == []
    assert "written to" in again.stdout


def test_a_launch_that_fails_says_why_and_does_the_rest(tmp_path: Path) -> None:
    fit(recipe=load_recipe("digits-plain", TEACHER_KEYS), out=tmp_path / "teacher")
    runner = runner_of(three_runs(tmp_path), tmp_path, tmp_path / "teacher")
    (runner.workspace.work / FIRST).mkdir(parents=True)
    (runner.workspace.work / FIRST / "mine.txt").touch()
    with pytest.raises(DeepShareError, match=rf"1 failed.*{FIRST}: .*{FIRST} is no run folder .*_log\.err") as error:
        launch(runner)
    assert "\n" not in str(error.value)
    outcomes = runner.outcomes()
    assert {job.name for job in outcomes} == {TEACHER, SECOND}
    assert outcomes[Job("teacher", "few")].given
    assert "open" not in {state for job, state, _ in runner.states() if job.name == SECOND}


def test_images_that_are_missing_are_missed_before_anything_is_launched(tmp_path: Path) -> None:
    runner = Runner(load_study("paper"), Workspace(tmp_path / "work", tmp_path / "out", tmp_path / "nowhere"))
    with pytest.raises(DataError, match="cifar-100-python"):
        launch(runner)
    assert not (tmp_path / "work" / "jobs").exists()


def test_every_seat_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    assert visible_gpus() == ["3", "GPU-5f"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
