"""A study of three runs, and what to ask of it while it runs."""

import time
from collections.abc import Callable
from pathlib import Path

from deepshare.study.compare.run import Workspace
from deepshare.study.compare.runner import Runner
from deepshare.study.compare.study_file import load_study
from tests.study.compare.digits import DIGITS

TEACHER, FIRST, SECOND = "few-teacher-seed0", "few-snl-96-seed0", "few-snl-192-seed0"
PASS = """
[[passes]]
about = "all"
data = "few"
methods = ["snl"]
budgets = [96, 192]
"""
LONG = 20  # epochs of search: long enough to be seen and killed


def three_runs(folder: Path, search: int = 2) -> Path:
    """A study of a teacher and two runs of SNL, whose search is as long as wanted."""
    text = DIGITS.read_text()
    head = text[: text.index("[methods.relu]")] + text[text.index("[methods.snl]") : text.index("[[passes]]")]
    for old, new in {"epochs = 3\n": f"epochs = {search + 1}\n", "epochs = 2, b": f"epochs = {search}, b"}.items():
        assert old in head
        head = head.replace(old, new)
    (folder / "three.toml").write_text(head + PASS)
    return folder / "three.toml"


def runner_of(study: Path, folder: Path, teacher: Path | None = None) -> Runner:
    return Runner(load_study(str(study)), Workspace(folder / "work", folder / "out", teacher=teacher))


def results(runner: Runner) -> dict[str, tuple[float, int, bytes]]:
    """What must not depend on how it was run: accuracy, gates and weights."""
    found = {}
    for job, outcome in runner.outcomes().items():
        assert outcome.run is not None
        weights = (runner.workspace.work / job.name / "model.safetensors").read_bytes()
        found[job.name] = (outcome.run.test, outcome.run.gates, weights)
    return found


def epochs_of(runner: Runner, name: str) -> int:
    file = runner.workspace.work / name / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def wait_until(happened: Callable[[], bool], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.05)
