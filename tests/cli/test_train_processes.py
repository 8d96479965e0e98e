"""`deepshare train --devices 2`: two processes from the command line, killed, resumed and refused."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.command import FLAGS

ROOT = Path(__file__).parents[2]
LATER = ("model.safetensors", "best.safetensors", "metrics.jsonl", "result.json")
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
    try:
        said, told = process.communicate(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, told
    return said, told


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_two_processes_from_the_command_line(tmp_path: Path) -> None:
    through, killed = tmp_path / "through", tmp_path / "killed"
    said, _ = finish(start(through))
    assert said.count("test accuracy") == 1
    # What is there if both are killed as soon as the teacher is trained.
    shutil.copytree(through, killed, ignore=lambda folder, _: LATER if Path(folder) == through else [])
    _, resumed = finish(start(killed, "--resume"))
    assert "gelu 1/1" in resumed
    assert "teacher 1/1" not in resumed
    for name in WHOLE:
        assert (killed / name).read_bytes() == (through / name).read_bytes(), name
    _, refused = finish(start(through), code=2)
    assert refused.count("deepshare: ") == 1
    assert f"deepshare: {through} holds a finished run: give another folder\n" in refused
