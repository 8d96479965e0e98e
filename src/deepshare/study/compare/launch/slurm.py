"""A study on a cluster with SLURM: every run is a job, those that share a teacher are one job array behind it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from deepshare.errors import CheckpointError, DeepShareError
from deepshare.files import write_atomically
from deepshare.study.compare.definition import TEACHERS, Job
from deepshare.study.compare.launch.worker import Worker, check_installed, needed, new_folder, prepare
from deepshare.study.compare.queue import Limits, Queue
from deepshare.training.reporter import Reporter

REQUEUES = 20  # times that a run may be stopped by its time limit; preemption is not counted


@dataclass(frozen=True)
class Wishes:
    """What a run needs of the cluster; what else sbatch should know is given by its own environment variables.

    Attributes:
        partition: By default the cluster's own.
        hours: After so many a run is stopped and queued again, to go on where it was.
        gpus: 0 or 1.
        cores: Of the CPU.
        at_once: Runs at the same time at most; None leaves it to SLURM.
    """

    partition: str | None = None
    hours: float = 24
    gpus: int = 1
    cores: int = 4
    at_once: int | None = None


def submit(queue: Queue, limits: Limits, wishes: Wishes, make_reporter: Callable[[], Reporter]) -> dict[Job, str]:
    """Submit what is open and is not in SLURM's queue yet, teachers first, and return without waiting for it.

    Args:
        queue: The study; its folders must be seen by all machines.
        limits: Which runs, and how many; minutes do not count.
        wishes: What a run needs.
        make_reporter: Makes who is told of a run, in its log.

    Returns:
        SLURM's number of the job of each run that was submitted.

    Raises:
        DeepShareError: submitit or SLURM is missing, or SLURM refuses the runs.
        CheckpointError: Another queue is at work, a file is damaged or the teacher does not fit.
        DataError: The data is missing.
    """
    check_installed("slurm")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise DeepShareError("--launch slurm: there is no sbatch or srun here: run it on a machine of the cluster")
    with queue.alone():
        prepare(queue, needed(queue, queue.outcomes(), limits), make_reporter())
        submission = _Submission(queue, wishes, make_reporter, new_folder(queue))
        waiting = submission.waiting()
        still = needed(queue, queue.outcomes(), limits)
        runs = [job for job in still if job.name not in waiting and not queue.is_running(job)][: limits.runs]
        ids: dict[Job, str] = {}
        for data in dict.fromkeys(job.data for job in runs):
            teachers = [Job(name, data) for name in TEACHERS]
            for teacher in teachers:
                ids |= submission.send([job for job in runs if job == teacher], None)
            sent = [ids.get(teacher) or waiting.get(teacher.name) for teacher in teachers]
            before = ":".join(number for number in sent if number)
            others = [job for job in runs if job.data == data and job not in teachers]
            ids |= submission.send(others, before or None)
    return ids


@dataclass(frozen=True)
class _Submission:
    queue: Queue
    wishes: Wishes
    make_reporter: Callable[[], Reporter]
    folder: Path

    @property
    def _record(self) -> Path:
        """The numbers of all jobs, by run."""
        return self.queue.place.work / "slurm.json"

    def _numbers(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self._record.read_text()) if self._record.exists() else {}
        except ValueError:
            raise CheckpointError(
                f"{self._record} is damaged: see with squeue that no job of the study is waiting, and delete it"
            ) from None
        return known

    def waiting(self) -> dict[str, str]:
        """The runs whose jobs are waiting or running, with their numbers."""
        numbers = self._numbers()
        if not numbers:
            return {}
        command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        if listed.returncode:
            raise DeepShareError(f"cannot see which runs are in SLURM's queue: {_last(listed.stderr)}: try again")
        return {name: number for name, number in numbers.items() if number in listed.stdout.split()}

    def send(self, runs: Sequence[Job], before: str | None) -> dict[Job, str]:
        """Submit runs as one array, which starts when the job before it has ended well."""
        if not runs:
            return {}
        import submitit

        executor = submitit.SlurmExecutor(self.folder, max_num_timeout=REQUEUES)
        workers = [Worker(self.queue, job, self.make_reporter) for job in runs]
        try:
            executor.update_parameters(**self._parameters(before))
            submitted = executor.submit_array(workers)
        except RuntimeError as error:
            raise DeepShareError(f"SLURM refused the runs: {_last(str(error))}") from None
        ids = {job: sent.job_id for job, sent in zip(runs, submitted, strict=True)}
        numbers = {**self._numbers(), **{job.name: number for job, number in ids.items()}}
        write_atomically(self._record, f"{json.dumps(numbers, indent=1)}\n".encode())
        return ids

    def _parameters(self, before: str | None) -> dict[str, object]:
        wishes = self.wishes
        parameters: dict[str, object] = {
            "job_name": f"deepshare-{self.queue.study.name}",
            "time": ceil(60 * wishes.hours),
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": wishes.cores,
        }
        if wishes.partition:
            parameters["partition"] = wishes.partition
        if wishes.gpus:
            parameters["gpus_per_node"] = wishes.gpus
        if wishes.at_once:
            parameters["array_parallelism"] = wishes.at_once
        if before:
            parameters["dependency"] = f"afterok:{before}"
            parameters["additional_parameters"] = {"kill-on-invalid-dep": "yes"}
        return parameters


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: ").removeprefix("error: ") if lines else "it does not say why"
