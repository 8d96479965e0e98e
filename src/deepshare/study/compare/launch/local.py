"""A study on this machine, several runs at a time, each in a process of its own."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from deepshare.errors import DeepShareError
from deepshare.study.compare.definition import Job
from deepshare.study.compare.launch.worker import Worker, check_installed, needed, new_folder, prepare
from deepshare.study.compare.outcome import Outcome
from deepshare.study.compare.queue import End, Limits, Queue
from deepshare.study.compare.run import teacher_is_there
from deepshare.training.reporter import Reporter

if TYPE_CHECKING:
    import submitit

YEAR = 365 * 24 * 60  # minutes: nobody else waits for this machine
POLL = 0.2  # seconds


def run_local(
    queue: Queue,
    limits: Limits,
    at_once: int,
    make_reporter: Callable[[], Reporter],
    tell: Callable[[Outcome], None],
) -> End:
    """Run what is open, several at a time, and wait for it.

    Args:
        queue: The study.
        limits: When to stop; minutes do not count.
        at_once: How many runs go on at the same time.
        make_reporter: Makes who is told of a run, in its log, and of the launch, here.
        tell: Is told of every outcome, which is already written.

    Raises:
        DeepShareError: submitit is missing, or runs failed; the others are done.
        CheckpointError: Another queue is at work, a file is damaged or the teacher does not fit.
        DataError: The data is missing.
    """
    check_installed("local")
    import submitit

    with queue.alone():
        reporter = make_reporter()
        prepare(queue, needed(queue, queue.outcomes(), limits), reporter)
        executor = submitit.LocalExecutor(new_folder(queue))
        executor.update_parameters(timeout_min=YEAR)
        pool = Pool(queue, limits, at_once, make_reporter, tell, reporter, executor)
        try:
            while pool.fill():
                pool.wait()
        finally:
            pool.stop()
    if pool.failed:
        said = "; ".join(f"{job.name}: {reason}" for job, reason in pool.failed.items())
        raise DeepShareError(f"{len(pool.failed)} failed and will go on when asked again: {said}")
    return "stopped" if queue.open(queue.outcomes(), limits) else "finished"


@dataclass
class Pool:
    """The jobs that go on now, and those that failed, with the reason."""

    queue: Queue
    limits: Limits
    at_once: int
    make_reporter: Callable[[], Reporter]
    tell: Callable[[Outcome], None]
    reporter: Reporter
    executor: "submitit.LocalExecutor"
    going: dict[Job, "submitit.Job[None]"] = field(default_factory=dict)
    seats: dict[Job, int] = field(default_factory=dict)
    failed: dict[Job, str] = field(default_factory=dict)
    begun: int = 0

    def fill(self) -> bool:
        """Start what can be started; gives whether there is something to wait for."""
        known = self.queue.outcomes()
        still = [job for job in needed(self.queue, known, self.limits) if job not in {**self.going, **self.failed}]
        others = [job for job in still if self.queue.is_running(job)]  # begun by a launch that was killed
        ready = [job for job in still if job not in others and self._is_ready(job)]
        room = self.at_once - len(self.going) - len(others)
        if self.limits.runs is not None:
            room = min(room, self.limits.runs - self.begun)
        for job in ready[: max(room, 0)]:
            self._start(job)
        return bool(self.going or others)

    def _is_ready(self, job: Job) -> bool:
        return all(teacher_is_there(teacher, self.queue.place) for teacher in self.queue.study.teachers_of(job))

    def _start(self, job: Job) -> None:
        seat = min(set(range(self.at_once)) - set(self.seats.values()))
        threads = max(1, torch.get_num_threads() // self.at_once)
        gpus = visible_gpus()
        gpu = gpus[seat % len(gpus)] if gpus else None
        self.going[job] = self.executor.submit(Worker(self.queue, job, self.make_reporter, threads, gpu))
        self.seats[job] = seat
        self.begun += 1
        self.reporter.note(f"{job.name}: begun, told in {self.going[job].paths.stderr}")

    def wait(self) -> None:
        """Wait until a job ends, or for a while if all are those of others."""
        while self.going and not any(submitted.done() for submitted in self.going.values()):
            time.sleep(POLL)
        if not self.going:
            time.sleep(10 * POLL)
        known = self.queue.outcomes()
        for job in [job for job, submitted in self.going.items() if submitted.done()]:
            submitted = self.going.pop(job)
            del self.seats[job]
            if submitted.exception():
                self.failed[job] = _reason(submitted)
            elif job in known:
                self.tell(known[job])

    def stop(self) -> None:
        """End what still goes on, which only an error or an interrupt leaves; it can be gone on with."""
        for submitted in self.going.values():
            submitted.cancel()
        for submitted in self.going.values():
            submitted.wait()


def visible_gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return [str(number) for number in range(torch.cuda.device_count())]


def _reason(submitted: "submitit.Job[None]") -> str:
    """The last line of its log, and where the others are."""
    said = (submitted.stderr() or "").strip().splitlines() or ["it was killed"]
    return f"{said[-1].partition('Error: ')[2] or said[-1]} (see {submitted.paths.stderr})"
