"""A server in this process, and the processes of its parties."""

import os
import subprocess
import threading
import time
from pathlib import Path

from deepshare.data.images import About
from deepshare.private.ir.program import Program
from deepshare.private.remote.server import ModelServer
from deepshare.private.remote.tls import tls_of
from deepshare.private.runtime.engine import find_engine

SIZE = (3, 16, 16)
ABOUT = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(10))))


class Running:
    """A service in this process, with what it said."""

    def __init__(self, program: Program, keys: Path | None = None) -> None:
        self.said: list[str] = []
        tls = None if keys is None else tls_of(keys / "server")
        service = ModelServer(
            engine=find_engine("crypten"), options={}, program=program, about=ABOUT, tls=tls, log=self.said.append
        )
        self.server = service.listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.socket.getsockname()[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait_for(self, words: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.said:
                if words in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"{words!r} not in {self.said}")


def workers() -> list[int]:
    """Children of this process that are parties."""
    command = ["pgrep", "-f", "-P", str(os.getpid()), "deepshare.private.runtime.party"]
    listed = subprocess.run(command, capture_output=True)
    return [int(line) for line in listed.stdout.split()]


def wait_for_workers(count: int, seconds: float = 60) -> list[int]:
    deadline = time.monotonic() + seconds
    while len(found := workers()) != count:
        assert time.monotonic() < deadline, f"{len(found)} workers, not {count}"
        time.sleep(0.05)
    return found
