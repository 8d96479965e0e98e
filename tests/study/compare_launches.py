"""A study of three runs, and SLURM's commands for a machine without it."""

import json
import os
import subprocess
from pathlib import Path

from deepshare.study.compare.queue import Queue
from deepshare.study.compare.recipes import load_study
from deepshare.study.compare.run import Place
from tests.study.test_compare_definition import DIGITS

TEACHER, FIRST, SECOND = "few-teacher-seed0", "few-snl-96-seed0", "few-snl-192-seed0"
PASS = """
[[passes]]
about = "all"
data = "few"
methods = ["snl"]
budgets = [96, 192]
"""

SBATCH = """#!/bin/sh
if [ -e "{folder}/refuse" ]; then echo "sbatch: error: invalid partition specified: none" >&2; exit 1; fi
number=$(($(ls {folder}/*.sh 2>/dev/null | wc -l) + 1))
cp "$1" "{folder}/$number.sh"
echo "Submitted batch job $number"
"""
SRUN = """#!/bin/sh
while [ "${{1#--}}" != "$1" ]; do
  case "$1" in --output|--error) shift;; esac
  shift
done
exec "$@"
"""
SQUEUE = """#!/bin/sh
cat "{folder}/queue" 2>/dev/null || true
"""
SCONTROL = """#!/bin/sh
echo "$@" >> "{folder}/requeued"
"""


def three_runs(folder: Path, search: int = 2) -> Path:
    """A study of a teacher and two runs of SNL, whose search is as long as wanted."""
    text = DIGITS.read_text()
    head = text[: text.index("[methods.relu]")] + text[text.index("[methods.snl]") : text.index("[[passes]]")]
    for old, new in {"epochs = 3\n": f"epochs = {search + 1}\n", "epochs = 2, b": f"epochs = {search}, b"}.items():
        assert old in head
        head = head.replace(old, new)
    (folder / "three.toml").write_text(head + PASS)
    return folder / "three.toml"


def queue_of(study: Path, folder: Path, teacher: Path | None = None) -> Queue:
    return Queue(load_study(str(study)), Place(folder / "work", folder / "out", teacher=teacher))


def results(queue: Queue) -> dict[str, tuple[float, int, bytes]]:
    """What must not depend on how it was run: accuracy, gates and weights."""
    found = {}
    for job, outcome in queue.outcomes().items():
        assert outcome.run is not None
        weights = (queue.place.work / job.name / "model.safetensors").read_bytes()
        found[job.name] = (outcome.run.test, outcome.run.gates, weights)
    return found


class FakeSlurm:
    """Takes jobs as SLURM does and starts none of itself; the test says when one runs, and what is in the queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = folder / "bin"
        self.commands.mkdir(parents=True)
        for name, text in {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE, "scontrol": SCONTROL}.items():
            (self.commands / name).write_text(text.format(folder=folder))
            (self.commands / name).chmod(0o755)
        self.path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"

    def options(self, number: int) -> dict[str, str]:
        """What a submission asks of SLURM."""
        lines = (self.folder / f"{number}.sh").read_text().splitlines()
        flags = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
        return dict(flag.split("=", 1) for flag in flags)

    @property
    def submissions(self) -> int:
        return len(list(self.folder.glob("*.sh")))

    def queued(self, *numbers: str) -> None:
        (self.folder / "queue").write_text("\n".join(numbers))

    def start(self, number: int, task: int | None = None) -> "subprocess.Popen[bytes]":
        """Run the script of a submission as SLURM would, in a session of its own."""
        own = {"SLURM_JOB_ID": str(number), "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
        own |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "localhost", "PATH": self.path}
        own |= {"SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_NAME": "deepshare"}
        if task is not None:
            own |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task)}
        script = self.folder / f"{number}.sh"
        return subprocess.Popen(["bash", script], env={**os.environ, **own}, start_new_session=True)

    def run(self, number: int, task: int | None = None) -> None:
        assert self.start(number, task).wait() == 0

    def record(self, work: Path) -> dict[str, str]:
        found: dict[str, str] = json.loads((work / "slurm.json").read_text())
        return found
