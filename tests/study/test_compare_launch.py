"""The runs of a study as jobs: real processes on the bundled digits, killed, queued again and gone on with."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError, DataError, DeepShareError
from deepshare.study.compare.definition import Job
from deepshare.study.compare.launch.local import run_local, visible_gpus
from deepshare.study.compare.launch.slurm import Wishes, submit
from deepshare.study.compare.outcome import Outcome
from deepshare.study.compare.queue import Limits, Queue
from deepshare.study.compare.recipes import load_study
from deepshare.study.compare.run import Place
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from deepshare.training.reporter import Reporter
from tests.study.compare_launches import FIRST, SECOND, TEACHER, FakeSlurm, queue_of, results, three_runs
from tests.study.test_compare_queue import TEACHER_KEYS

pytest.importorskip("submitit", reason="jobs are launched by submitit")

LONG = 20  # epochs of search: long enough to be seen and killed


def launch(queue: Queue) -> list[str]:
    """Run, and give the names of what was run."""
    done: list[Outcome] = []
    run_local(queue, Limits(), 2, Reporter, done.append)
    return [outcome.job.name for outcome in done]


def wait_until(happened: Callable[[], bool], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.05)


def epochs_of(queue: Queue, name: str) -> int:
    file = queue.place.work / name / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """The three runs one after the other in this process; not to be changed."""
    folder = tmp_path_factory.mktemp("plain")
    queue = queue_of(three_runs(folder, LONG), folder)
    assert queue.run(Limits(), Reporter, lambda outcome: None) == "finished"
    return queue


def test_two_at_a_time_killed_and_launched_again(plain: Queue, tmp_path: Path) -> None:
    study = three_runs(tmp_path, LONG)
    queue = queue_of(study, tmp_path)
    flags = ["--study", study, "--out", queue.out, "--work", queue.place.work, "--launch", "local", "--at-once", 2]
    command = [sys.executable, "-m", "deepshare", "compare", *map(str, flags)]
    first = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def both_run() -> bool:
        states = {job.name: state for job, state, _ in queue.states()}
        return states[FIRST] == states[SECOND] == "running" and epochs_of(queue, FIRST) > 0

    wait_until(both_run, "two runs at the same time")
    with pytest.raises(DeepShareError, match="another queue is at work"):
        launch(queue)
    os.killpg(first.pid, signal.SIGKILL)
    _, said = first.communicate()
    begun = [line.partition(":")[0] for line in said.splitlines() if ": begun" in line]
    assert begun == [TEACHER, FIRST, SECOND]
    wait_until(lambda: not any(state == "running" for _, state, _ in queue.states()), "at rest", 10)
    assert [job.name for job in queue.outcomes()] == [TEACHER]

    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    begun = [line.partition(":")[0] for line in again.stderr.splitlines() if ": begun" in line]
    assert begun == [FIRST, SECOND]  # the teacher had its result
    assert results(queue) == results(plain)
    assert launch(queue) == []
    assert "written to" in again.stdout


def test_a_launch_that_fails_says_why_and_does_the_rest(tmp_path: Path) -> None:
    fit(recipe=load_recipe("digits-plain", TEACHER_KEYS), out=tmp_path / "teacher")
    queue = queue_of(three_runs(tmp_path), tmp_path, tmp_path / "teacher")
    (queue.place.work / FIRST).mkdir(parents=True)
    (queue.place.work / FIRST / "mine.txt").touch()
    with pytest.raises(DeepShareError, match=rf"1 failed.*{FIRST}: .*{FIRST} is no run folder .*_log\.err") as error:
        launch(queue)
    assert "\n" not in str(error.value)
    outcomes = queue.outcomes()
    assert {job.name for job in outcomes} == {TEACHER, SECOND}
    assert outcomes[Job("teacher", "few")].given
    assert "open" not in {state for job, state, _ in queue.states() if job.name == SECOND}


def test_images_that_are_missing_are_missed_before_anything_is_launched(tmp_path: Path) -> None:
    queue = Queue(load_study("paper"), Place(tmp_path / "work", tmp_path / "out", tmp_path / "nowhere"))
    with pytest.raises(DataError, match="cifar-100-python"):
        launch(queue)
    assert not (tmp_path / "work" / "jobs").exists()


def test_every_seat_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    assert visible_gpus() == ["3", "GPU-5f"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def test_slurm_has_an_array_behind_the_teacher_and_queues_again(slurm: FakeSlurm, plain: Queue, tmp_path: Path) -> None:
    queue = queue_of(three_runs(tmp_path, LONG), tmp_path)
    ids = submit(queue, Limits(), Wishes("long", hours=1.5, cores=8, at_once=1), Reporter)
    assert {job.name: number for job, number in ids.items()} == {TEACHER: "1", FIRST: "2_0", SECOND: "2_1"}
    alone, array = slurm.options(1), slurm.options(2)
    asked = {"partition": "long", "time": "90", "gpus-per-node": "1", "cpus-per-task": "8", "nodes": "1"}
    assert asked.items() <= alone.items() and asked.items() <= array.items()
    assert "array" not in alone and "dependency" not in alone
    assert (array["array"], array["dependency"], array["kill-on-invalid-dep"]) == ("0-1%1", "afterok:1", "yes")

    slurm.queued("1", "2_0", "2_1")
    assert submit(queue, Limits(), Wishes(), Reporter) == {}
    slurm.run(1)
    running = slurm.start(2, task=0)
    wait_until(lambda: epochs_of(queue, FIRST) > 0, "an epoch")
    os.killpg(running.pid, signal.SIGUSR2)  # what SLURM sends before it ends a job
    running.wait()
    wait_until(lambda: (slurm.folder / "requeued").exists(), "queued again", 60)
    assert (slurm.folder / "requeued").read_text() == "requeue 2_0\n"
    wait_until(lambda: not queue.is_running(Job("snl", "few", 96)), "at rest", 60)
    assert {job.name for job in queue.outcomes()} == {TEACHER}
    slurm.run(2, task=0)
    assert {job.name for job in queue.outcomes()} == {TEACHER, FIRST}

    slurm.queued()  # the third was lost
    assert [job.name for job in submit(queue, Limits(), Wishes(gpus=0), Reporter)] == [SECOND]
    assert {"array", "dependency", "partition", "gpus-per-node"} & set(slurm.options(3)) == set()
    slurm.run(3)
    assert results(queue) == results(plain)
    assert submit(queue, Limits(), Wishes(), Reporter) == {}
    assert slurm.submissions == 3


def test_slurm_that_refuses_is_quoted(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "refuse").touch()
    queue = queue_of(three_runs(tmp_path), tmp_path)
    with pytest.raises(DeepShareError, match=r"^SLURM refused the runs: invalid partition specified: none$"):
        submit(queue, Limits(), Wishes("none"), Reporter)
    assert not (queue.place.work / "slurm.json").exists()


def test_a_damaged_record_of_jobs_is_named(slurm: FakeSlurm, tmp_path: Path) -> None:
    queue = queue_of(three_runs(tmp_path), tmp_path)
    queue.place.work.mkdir(parents=True)
    (queue.place.work / "slurm.json").write_text('{"few')
    with pytest.raises(CheckpointError, match=r"slurm\.json is damaged: see with squeue"):
        submit(queue, Limits(), Wishes(), Reporter)
    assert slurm.submissions == 0
