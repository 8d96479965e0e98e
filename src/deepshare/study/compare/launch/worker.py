"""One run as a job, and which runs there are to start."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepshare.errors import DeepShareError
from deepshare.study.compare.definition import Job
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.queue import Limits, Queue
from deepshare.study.compare.run import teacher_is_there
from deepshare.training.reporter import Reporter

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


@dataclass(frozen=True)
class Worker:
    """What a job does.

    Attributes:
        queue: The study and where it is run.
        job: The run.
        make_reporter: Makes who is told of it, in the job's own log.
        threads: For torch; None leaves it as it is.
        gpu: The one that it may use; None leaves it as it is.
    """

    queue: Queue
    job: Job
    make_reporter: Callable[[], Reporter]
    threads: int | None = None
    gpu: str | None = None

    def __call__(self) -> None:
        """Do the run, or go on with it where an earlier job was stopped."""
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        self.queue.work_on(self.job, self.make_reporter())

    def checkpoint(self) -> "DelayedSubmission":
        """What is queued again when time is up or the machine is wanted by others: the same."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)


def needed(queue: Queue, known: Outcomes, limits: Limits) -> list[Job]:
    """What has no result yet, each after its teacher if that one's weights are not there, as in a fresh clone."""
    found: dict[Job, None] = {}
    for job in queue.open(known, limits):
        missing = [teacher for teacher in queue.study.teachers_of(job) if not teacher_is_there(teacher, queue.place)]
        found |= dict.fromkeys([*missing, job])
    return list(found)


def prepare(queue: Queue, runs: Sequence[Job], reporter: Reporter) -> None:
    """Do once what all jobs would do, see `Queue.look_ahead`."""
    for outcome in queue.look_ahead(runs, reporter):
        if outcome.refused:
            reporter.note(f"{outcome.job.name}: no result: {outcome.refused}")


def check_installed(launch: str) -> None:
    """See whether jobs can be launched at all.

    Raises:
        DeepShareError: A package is missing.
    """
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise DeepShareError(f"--launch {launch} needs submitit: pip install 'deepshare[cluster]'") from None


def new_folder(queue: Queue) -> Path:
    """Where the jobs of one launch keep what they are told and what they say."""
    return queue.place.work / "jobs" / datetime.now().strftime("%Y%m%d-%H%M%S")
