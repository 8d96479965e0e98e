"""`deepshare train --devices 2`: two processes from the command line, killed, resumed and refused."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_train import FLAGS

ROOT = Path(__file__).parents[2]
WHOLE = ("model.safetensors", "best.safetensors", "teacher/model.safetensors", "plan.json", "recipe.toml")


def start(out: Path, *more: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "deepshare", "train", "-r", "digits", "--out", str(out), *FLAGS]
    return subprocess.Popen(
        [*command, "--accelerator", "cpu", "--devices", "2", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    said, told = process.communicate(timeout=120)
    assert process.returncode == code, told
    return said, told


def copy_once(process: "subprocess.Popen[str]", file: Path, folder: Path, copy: Path) -> None:
    """Copy a folder once a file is there, as both processes would leave it if they were killed at that moment."""
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGSTOP)
    shutil.copytree(folder, copy)
    os.killpg(process.pid, signal.SIGCONT)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_two_processes_from_the_command_line(tmp_path: Path) -> None:
    through, killed = tmp_path / "through", tmp_path / "killed"
    process = start(through)
    copy_once(process, through / "teacher" / "model.safetensors", through, killed)
    said, _ = finish(process)
    assert said.count("test accuracy") == 1
    _, resumed = finish(start(killed, "--resume"))
    assert "gelu 1/1" in resumed
    assert "teacher 1/1" not in resumed
    for name in WHOLE:
        assert (killed / name).read_bytes() == (through / name).read_bytes(), name
    _, refused = finish(start(through), code=2)
    assert refused.count("deepshare: ") == 1
    assert f"deepshare: {through} holds a finished run: give another folder\n" in refused
