"""One run of a study as a submitted job, and the runs to submit."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepshare.errors import DeepShareError
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.runner import Limits, Runner
from deepshare.study.compare.study_file import Job
from deepshare.training.reporter import Reporter

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


@dataclass(frozen=True)
class JobProcess:
    """Callable that submitit executes in the process of a job.

    Attributes:
        runner: Runner of the study.
        job: The run.
        make_reporter: Creates the reporter of the run, which writes to the job's own log.
        threads: Number of torch threads; None leaves it unchanged.
        gpu: GPU to use; None leaves it unchanged.
    """

    runner: Runner
    job: Job
    make_reporter: Callable[[], Reporter]
    threads: int | None = None
    gpu: str | None = None

    def __call__(self) -> None:
        """Do the run, or resume it where an earlier job was stopped."""
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        self.runner.work_on(self.job, self.make_reporter())

    def checkpoint(self) -> "DelayedSubmission":
        """Submit the same job again on timeout or preemption; submitit calls this."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)


def needed(runner: Runner, known: Outcomes, limits: Limits) -> list[Job]:
    """Runs without an outcome, each after its teachers if their weights are missing, as in a fresh clone."""
    found: dict[Job, None] = {}
    for job in runner.open(known, limits):
        teachers = runner.study.teachers_of(job)
        missing = [teacher for teacher in teachers if not runner.workspace.has_teacher(teacher)]
        found |= dict.fromkeys([*missing, job])
    return list(found)


def prepare(runner: Runner, runs: Sequence[Job], reporter: Reporter) -> None:
    """Do once what all jobs would do; see `Runner.look_ahead`."""
    for outcome in runner.look_ahead(runs, reporter):
        if outcome.refused:
            reporter.note(f"{outcome.job.name}: no result: {outcome.refused}")


def check_installed(launch: str) -> None:
    """Check that submitit is installed.

    Raises:
        DeepShareError: It is not.
    """
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise DeepShareError(f"--launch {launch} needs submitit: pip install 'deepshare[cluster]'") from None


def new_folder(runner: Runner) -> Path:
    """Folder for the pickled jobs and logs of one launch."""
    return runner.workspace.work / "jobs" / datetime.now().strftime("%Y%m%d-%H%M%S")
