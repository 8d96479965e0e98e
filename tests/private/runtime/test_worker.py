"""The process of a party."""

import os
import pickle
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch import nn

from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, Task


@pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "task").write_bytes(_waiting_task())
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'deepshare.private.runtime.worker'], stdin=subprocess.PIPE)\n"
        "child.stdin.write(pathlib.Path(sys.argv[1]).read_bytes()); child.stdin.flush()\n"
        "print(child.pid, flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "task")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(3)
    os.kill(worker, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.1)


def _waiting_task() -> bytes:
    """A server whose client never comes."""
    program = translate(nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), (3, 16, 16))
    addresses: dict[Role, str] = {"server": "127.0.0.1:29871", "client": "127.0.0.1:29872"}
    return pickle.dumps(("crypten", Task(role="server", program=program, addresses=addresses, count=1)))


def _alive(process: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
