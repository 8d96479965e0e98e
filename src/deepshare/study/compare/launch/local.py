"""Launch on this machine: several runs at a time, each in its own process."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from deepshare.errors import DeepShareError
from deepshare.study.compare.launch.worker import JobProcess, check_installed, needed, new_folder, prepare
from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.runner import End, Limits, Runner
from deepshare.study.compare.study_file import Job
from deepshare.training.reporter import Reporter

if TYPE_CHECKING:
    import submitit

YEAR = 365 * 24 * 60  # minutes; in effect no timeout
POLL = 0.2  # seconds


def run_local(
    runner: Runner,
    limits: Limits,
    at_once: int,
    make_reporter: Callable[[], Reporter],
    on_outcome: Callable[[RunOutcome], None],
) -> End:
    """Do all open runs, several at a time, and wait for them.

    Args:
        runner: Runner of the study.
        limits: Limits of the execution, without minutes.
        at_once: Number of simultaneous runs.
        make_reporter: Creates the reporter of a run, which writes to its log, and that of the launch.
        on_outcome: Called with every outcome, after it is written.

    Raises:
        DeepShareError: submitit is missing, or some runs failed; the others are finished.
        CheckpointError: Another runner is active, a file is damaged, or the teacher does not fit.
        DataError: The data set is missing.
    """
    check_installed("local")
    import submitit

    with runner.exclusive():
        reporter = make_reporter()
        prepare(runner, needed(runner, runner.outcomes(), limits), reporter)
        executor = submitit.LocalExecutor(new_folder(runner))
        executor.update_parameters(timeout_min=YEAR)
        launched = LocalJobs(runner, limits, at_once, make_reporter, on_outcome, reporter, executor)
        try:
            while launched.fill():
                launched.wait()
        finally:
            launched.stop()
    if launched.failed:
        said = "; ".join(f"{job.name}: {reason}" for job, reason in launched.failed.items())
        raise DeepShareError(f"{len(launched.failed)} failed and will resume when started again: {said}")
    return "stopped" if runner.open(runner.outcomes(), limits) else "finished"


@dataclass
class LocalJobs:
    """Jobs that are running, and failed jobs with the reason."""

    runner: Runner
    limits: Limits
    at_once: int
    make_reporter: Callable[[], Reporter]
    on_outcome: Callable[[RunOutcome], None]
    reporter: Reporter
    executor: "submitit.LocalExecutor"
    going: dict[Job, "submitit.Job[None]"] = field(default_factory=dict)
    seats: dict[Job, int] = field(default_factory=dict)
    failed: dict[Job, str] = field(default_factory=dict)
    begun: int = 0

    def fill(self) -> bool:
        """Start as many jobs as allowed, and return whether there is one to wait for."""
        known = self.runner.outcomes()
        still = [job for job in needed(self.runner, known, self.limits) if job not in {**self.going, **self.failed}]
        others = [job for job in still if self.runner.workspace.is_running(job)]  # begun by a launch that was killed
        ready = [job for job in still if job not in others and self._is_ready(job)]
        room = self.at_once - len(self.going) - len(others)
        if self.limits.runs is not None:
            room = min(room, self.limits.runs - self.begun)
        for job in ready[: max(room, 0)]:
            self._start(job)
        return bool(self.going or others)

    def _is_ready(self, job: Job) -> bool:
        return all(map(self.runner.workspace.has_teacher, self.runner.study.teachers_of(job)))

    def _start(self, job: Job) -> None:
        seat = min(set(range(self.at_once)) - set(self.seats.values()))
        threads = max(1, torch.get_num_threads() // self.at_once)
        gpus = visible_gpus()
        gpu = gpus[seat % len(gpus)] if gpus else None
        self.going[job] = self.executor.submit(JobProcess(self.runner, job, self.make_reporter, threads, gpu))
        self.seats[job] = seat
        self.begun += 1
        self.reporter.note(f"{job.name}: started, log in {self.going[job].paths.stderr}")

    def wait(self) -> None:
        """Wait until a job ends, or for a while if all running ones belong to another launch."""
        while self.going and not any(submitted.done() for submitted in self.going.values()):
            time.sleep(POLL)
        if not self.going:
            time.sleep(10 * POLL)
        known = self.runner.outcomes()
        for job in [job for job, submitted in self.going.items() if submitted.done()]:
            submitted = self.going.pop(job)
            del self.seats[job]
            if submitted.exception():
                self.failed[job] = _reason(submitted)
            elif job in known:
                self.on_outcome(known[job])

    def stop(self) -> None:
        """Cancel jobs that an error or interrupt left running; they can be resumed."""
        for submitted in self.going.values():
            submitted.cancel()
        for submitted in self.going.values():
            submitted.wait()


def visible_gpus() -> list[str]:
    """GPUs of this machine, named as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return [str(number) for number in range(torch.cuda.device_count())]


def _reason(submitted: "submitit.Job[None]") -> str:
    """Last line of a job's log, and the path of the log."""
    said = (submitted.stderr() or "").strip().splitlines() or ["it was killed"]
    return f"{said[-1].partition('Error: ')[2] or said[-1]} (see {submitted.paths.stderr})"
