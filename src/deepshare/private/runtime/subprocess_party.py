"""One party in a process of its own, watched from here.

A worker gets its task from its parent and from nobody else; it ends when its parent does, and takes whatever it has
started with it.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Queue
from typing import Any, BinaryIO, Protocol, cast

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Engine, Role, Task

Event = tuple[Role, str, Any]


class _Piped(Protocol):
    """A process with both pipes."""

    stdin: BinaryIO
    stdout: BinaryIO
    pid: int
    returncode: int | None

    def wait(self) -> int: ...


class Worker:
    """A running party; what it tells goes to a queue as (role, kind, value).

    Kinds: "ready" once connected, then "done" with an Outcome; or "refused" with a reason that the engine gives, or
    "lost" if another party hung up, or "failed" with the words of whatever else went wrong beneath it.
    """

    def __init__(
        self, engine: str, task: Task, events: "Queue[Event]", threads: int, through: tuple[str, ...] = ()
    ) -> None:
        self.role = task.role
        self._events = events
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open until stop
        # Libraries leave files where they run, and import what lies there.
        self._folder = tempfile.TemporaryDirectory(prefix="deepshare-", ignore_cleanup_errors=True)
        process = subprocess.Popen(
            [*through, sys.executable, "-m", "deepshare.private.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **_python_path(), "OMP_NUM_THREADS": str(threads)},
            cwd=self._folder.name,
            start_new_session=True,
        )
        self._process = cast(_Piped, process)
        threading.Thread(target=self._feed, args=(engine, task), daemon=True).start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):  # what was not written any more
                stream.close()
        self._folder.cleanup()

    def _feed(self, engine: str, task: Task) -> None:
        # The pipe stays open: its end tells the worker that its parent is gone.
        with suppress(OSError, ValueError):  # where the worker is gone, its reader tells why
            pickle.dump((engine, task), self._process.stdin)
            self._process.stdin.flush()

    def _read(self) -> None:
        kind = ""
        with suppress(EOFError, pickle.UnpicklingError, ValueError):
            while kind in ("", "ready"):
                kind, value = pickle.load(self._process.stdout)
                self._events.put((self.role, kind, value))
        if kind in ("", "ready"):
            self._process.wait()
            self._events.put((self.role, "failed", f"its process ended ({self._last_words()})"))

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self._process.returncode}"


def in_process(engine: Engine) -> Callable[[Task, "Queue[Event]"], Worker]:
    """What starts a party of an engine in a process that has all cores."""
    return lambda task, events: Worker(engine.name, task, events, len(os.sched_getaffinity(0)))


def _python_path() -> dict[str, str]:
    """Where modules are found, for a process in another folder."""
    given = os.environ.get("PYTHONPATH")
    return {} if given is None else {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))}


def failure(role: Role, reason: str) -> EngineError:
    """The error that tells why a party failed."""
    return EngineError(f"the {role} failed: {reason}")
