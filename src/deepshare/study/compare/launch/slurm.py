"""Launch on a SLURM cluster: a job per run; runs with the same teacher are one job array that depends on it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from deepshare.errors import CheckpointError, DeepShareError
from deepshare.files import write_atomically
from deepshare.study.compare.launch.worker import JobProcess, check_installed, needed, new_folder, prepare
from deepshare.study.compare.runner import Limits, Runner
from deepshare.study.compare.study_file import TEACHERS, Job
from deepshare.training.reporter import Reporter

REQUEUES = 20  # timeouts allowed per run; preemptions are not counted


@dataclass(frozen=True)
class Resources:
    """Resources of a job; pass further options to sbatch in its own environment variables.

    Attributes:
        partition: Partition; None is the cluster's default.
        hours: Time limit, after which the job is requeued and resumes.
        gpus: 0 or 1.
        cores: CPU cores.
        at_once: Maximum number of simultaneous jobs; None leaves it to SLURM.
    """

    partition: str | None = None
    hours: float = 24
    gpus: int = 1
    cores: int = 4
    at_once: int | None = None


def submit(
    runner: Runner, limits: Limits, resources: Resources, make_reporter: Callable[[], Reporter]
) -> dict[Job, str]:
    """Submit all open runs that are not in SLURM's queue yet, teachers first, without waiting for them.

    Args:
        runner: Runner of the study; its folders must be visible to all machines.
        limits: Limits of the execution, without minutes.
        resources: Resources of a job.
        make_reporter: Creates the reporter of a run, which writes to its log.

    Returns:
        SLURM job number of each submitted run.

    Raises:
        DeepShareError: submitit or SLURM is missing, or SLURM rejects the jobs.
        CheckpointError: Another runner is active, a file is damaged, or the teacher does not fit.
        DataError: The data set is missing.
    """
    check_installed("slurm")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise DeepShareError("--launch slurm: sbatch or srun is not installed: run it on a machine of the cluster")
    with runner.exclusive():
        prepare(runner, needed(runner, runner.outcomes(), limits), make_reporter())
        submission = _Submission(runner, resources, make_reporter, new_folder(runner))
        waiting = submission.waiting()
        still = needed(runner, runner.outcomes(), limits)
        idle = [job for job in still if job.name not in waiting and not runner.workspace.is_running(job)]
        runs = idle[: limits.runs]
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
    runner: Runner
    resources: Resources
    make_reporter: Callable[[], Reporter]
    folder: Path

    @property
    def _record(self) -> Path:
        """File of the job numbers of all runs."""
        return self.runner.workspace.work / "slurm.json"

    def _numbers(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self._record.read_text()) if self._record.exists() else {}
        except ValueError:
            raise CheckpointError(
                f"{self._record} is damaged: check with squeue that no job of the study is waiting, and delete it"
            ) from None
        return known

    def waiting(self) -> dict[str, str]:
        """Job numbers of the runs that are waiting or running."""
        numbers = self._numbers()
        if not numbers:
            return {}
        command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        if listed.returncode:
            raise DeepShareError(f"cannot list the runs in SLURM's queue: {_last(listed.stderr)}: try again")
        return {name: number for name, number in numbers.items() if number in listed.stdout.split()}

    def send(self, runs: Sequence[Job], before: str | None) -> dict[Job, str]:
        """Submit runs as one job array, which starts after the jobs in `before` have succeeded."""
        if not runs:
            return {}
        import submitit

        executor = submitit.SlurmExecutor(self.folder, max_num_timeout=REQUEUES)
        processes = [JobProcess(self.runner, job, self.make_reporter) for job in runs]
        try:
            executor.update_parameters(**self._parameters(before))
            submitted = executor.submit_array(processes)
        except RuntimeError as error:
            raise DeepShareError(f"SLURM refused the runs: {_last(str(error))}") from None
        ids = {job: sent.job_id for job, sent in zip(runs, submitted, strict=True)}
        numbers = {**self._numbers(), **{job.name: number for job, number in ids.items()}}
        write_atomically(self._record, f"{json.dumps(numbers, indent=1)}\n".encode())
        return ids

    def _parameters(self, before: str | None) -> dict[str, object]:
        resources = self.resources
        parameters: dict[str, object] = {
            "job_name": f"deepshare-{self.runner.study.name}",
            "time": ceil(60 * resources.hours),
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": resources.cores,
        }
        if resources.partition:
            parameters["partition"] = resources.partition
        if resources.gpus:
            parameters["gpus_per_node"] = resources.gpus
        if resources.at_once:
            parameters["array_parallelism"] = resources.at_once
        if before:
            parameters["dependency"] = f"afterok:{before}"
            parameters["additional_parameters"] = {"kill-on-invalid-dep": "yes"}
        return parameters


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: ").removeprefix("error: ") if lines else "it does not say why"
