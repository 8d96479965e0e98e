"""SLURM's commands for a machine without it."""

import json
import os
import subprocess
from pathlib import Path

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
