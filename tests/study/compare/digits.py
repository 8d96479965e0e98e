"""The packaged study digits, whose runs take seconds."""

from importlib import resources
from pathlib import Path
from typing import Any

from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.run import Workspace
from deepshare.study.compare.runner import Limits, Runner
from deepshare.study.compare.study_file import load_study
from deepshare.training.reporter import Reporter

DIGITS = Path(str(resources.files("deepshare.study.compare"))) / "studies" / "digits.toml"
TEACHER_KEYS = {"model.arguments.width": 8, "data.validation": 64, "plain.epochs": 1, "teacher.epochs": 0}


def runner_in(folder: Path, teacher: Path | None = None) -> Runner:
    return Runner(load_study("digits"), Workspace(folder / "work", folder / "out", teacher=teacher))


def run(runner: Runner, *methods: str, runs: int | None = None, minutes: float | None = None) -> list[str]:
    """Run, and give the names of what was run."""
    done: list[RunOutcome] = []
    runner.run(Limits(minutes, runs, methods), Reporter, done.append)
    return [outcome.job.name for outcome in done]


def figures(runner: Runner) -> dict[str, Any]:
    """All that must be the same however often it was interrupted."""
    outcomes = {job.name: outcome.model_dump() for job, outcome in runner.outcomes().items()}
    for outcome in outcomes.values():
        if outcome["run"]:
            outcome["run"] = {
                key: outcome["run"][key] for key in ("test", "validation", "gates", "epochs", "overrides")
            }
    return outcomes
