"""Parties at work, each in a process of its own, and the wait for their outcomes.

A party reports its progress as events: "ready" once connected, then "done" with an Outcome. Or it fails: "refused" with
a reason that the engine gives, "lost" if another party hung up, "failed" with the words of whatever else went wrong
beneath it, and "gone" if it vanished.

`run_here` runs all of them on this machine. The process of a party is `python -m deepshare.private.runtime.party`.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from deepshare.errors import DeepShareError, EngineError, reason
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Engine, Role, Task, find_engine
from deepshare.private.runtime.outcome import Outcome

# Parties have to find each other within this time; how long they compute is their affair.
CONNECT_SECONDS = 120
# A party that fails takes the others with it, and they may be heard first.
GRACE_SECONDS = 10.0
# The likeliest cause first: a party whose connection was lost has a cause elsewhere, maybe in a party that is gone.
FAILURES = ("refused", "failed", "gone", "lost")


class Event(NamedTuple):
    """One report of a party."""

    role: Role
    kind: str
    value: Any = None


class Party(Protocol):
    """A party, here or elsewhere."""

    def start(self, report: Callable[[Event], None]) -> None:
        """Begin, and report events from another thread."""

    def stop(self) -> None:
        """End it, however far it is."""


class PartyError(EngineError):
    """The root cause of a failure, with the party at fault."""

    def __init__(self, role: Role, reason: str) -> None:
        super().__init__(f"the {role} failed: {reason}")
        self.role, self.reason = role, reason


def attempt(run: Callable[[Callable[[], None]], Outcome], report: Callable[[str, Any], None]) -> None:
    """Run one party's part, and report its progress and its end.

    Args:
        run: The part; it gets the function to call once the parties are connected.
        report: Takes the kind and the value of an event.
    """
    try:
        report("done", run(lambda: report("ready", None)))
    except DeepShareError as error:
        report("refused", str(error))
    except ConnectionError as error:
        report("lost", f"{type(error).__name__}: {reason(error)}")
    except Exception as error:
        report("failed", f"{type(error).__name__}: {reason(error)}")


class _Piped(Protocol):
    """A process with both pipes."""

    stdin: BinaryIO
    stdout: BinaryIO
    pid: int
    returncode: int | None

    def wait(self) -> int: ...


class ProcessParty:
    """A party in a process of its own, which runs `main` of this module.

    The process gets its task from its parent and from nobody else; it ends when its parent does, and takes whatever it
    has started with it.

    Args:
        engine: Name of the engine.
        task: The party's.
        threads: Number of its threads; all cores if None.
        through: Command that its process is started through.
        inherited: Descriptor that it gets, under the same number.
    """

    def __init__(
        self,
        engine: str,
        task: Task,
        threads: int | None = None,
        through: tuple[str, ...] = (),
        inherited: int | None = None,
    ) -> None:
        self._engine, self._task, self._through = engine, task, through
        self._inherited = () if inherited is None else (inherited,)
        self._threads = len(os.sched_getaffinity(0)) if threads is None else threads

    def start(self, report: Callable[[Event], None]) -> None:
        """Start the process."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open until stop
        # Libraries leave files where they run, and import what lies there.
        self._folder = tempfile.TemporaryDirectory(prefix="deepshare-", ignore_cleanup_errors=True)
        process = subprocess.Popen(
            [*self._through, sys.executable, "-m", "deepshare.private.runtime.party"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **_python_path(), "OMP_NUM_THREADS": str(self._threads)},
            cwd=self._folder.name,
            start_new_session=True,
            pass_fds=self._inherited,
        )
        self._process = cast(_Piped, process)
        threading.Thread(target=self._feed, daemon=True).start()
        self._reader = threading.Thread(target=self._read, args=(report,), daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Kill the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):  # what was not written any more
                stream.close()
        self._folder.cleanup()

    def _feed(self) -> None:
        # The pipe stays open: its end tells the worker that its parent is gone.
        with suppress(OSError, ValueError):  # where the worker is gone, its reader tells why
            pickle.dump((self._engine, self._task), self._process.stdin)
            self._process.stdin.flush()

    def _read(self, report: Callable[[Event], None]) -> None:
        kind, role = "", self._task.role
        with suppress(EOFError, pickle.UnpicklingError, ValueError):
            while kind in ("", "ready"):
                kind, value = pickle.load(self._process.stdout)
                report(Event(role, kind, value))
        if kind in ("", "ready"):
            self._process.wait()
            report(Event(role, "failed", f"its process ended ({self._last_words()})"))

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self._process.returncode}"


def _python_path() -> dict[str, str]:
    """The import path, for a process in another folder."""
    given = os.environ.get("PYTHONPATH")
    return {} if given is None else {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))}


def main() -> None:
    """Do the parent's task, in its process; everything that libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine, task = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def report(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    attempt(lambda ready: find_engine(engine).run(task, ready), report)
    os._exit(0)  # libraries that wait for their peers at exit would wait for ever


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def watch(
    events: "Queue[Event]",
    roles: Iterable[Role],
    unconnected: Callable[[list[Role]], str],
    end_seconds: float | None = None,
) -> dict[Role, Outcome]:
    """Wait for the outcomes of all parties.

    Args:
        events: Reports of all of them.
        roles: The parties.
        unconnected: The error for parties that do not connect in time.
        end_seconds: Limit for the others once the first is done; None where a party may be done long before the others.

    Raises:
        PartyError: A party failed.
        EngineError: A party is late.
    """
    outcomes: dict[Role, Outcome] = {}
    waiting = set(roles)
    while running := set(roles) - set(outcomes):
        timeout = CONNECT_SECONDS if waiting else end_seconds if outcomes else None
        try:
            event = events.get(timeout=timeout)
        except Empty:
            if waiting:
                raise EngineError(unconnected(sorted(waiting))) from None
            late = ", ".join(sorted(running))
            raise EngineError(f"the {late} did not end within {timeout} s of the other party") from None
        if event.kind in FAILURES:
            raise root_cause(events, event, running)
        waiting.discard(event.role)
        if event.kind == "done":
            outcomes[event.role] = event.value
    return outcomes


def root_cause(events: "Queue[Event]", first: Event, running: set[Role]) -> PartyError:
    """Root cause among simultaneous failures: a reason that an engine gave, or else the likeliest.

    Args:
        events: Reports of all parties.
        first: The failure that was heard first.
        running: The parties that had not ended before; they are waited for, until there is a reason or one is gone.
    """
    heard, deadline = [first], time.monotonic() + GRACE_SECONDS
    with suppress(Empty):
        while heard[-1].kind not in ("refused", "gone") and not running <= {
            event.role for event in heard if event.kind != "ready"
        }:
            heard.append(events.get(timeout=max(0.0, deadline - time.monotonic())))
    failures = [event for event in heard if event.kind in FAILURES]
    role, _, why = min(failures, key=lambda event: FAILURES.index(event.kind))
    return PartyError(role, why)


@dataclass(frozen=True)
class Machine:
    """A machine that a party runs on.

    Attributes:
        host: Its address.
        through: The command that processes are started through there, such as `ip netns exec NAME`.
    """

    host: str = "127.0.0.1"
    through: tuple[str, ...] = ()


def run_here(
    engine: Engine,
    program: Program,
    images: Tensor,
    options: Mapping[str, str],
    machines: Mapping[Role, Machine] | None = None,
) -> dict[Role, Outcome]:
    """Run all parties and wait for them; no process is left when this returns or raises.

    Raises:
        EngineError: A party failed; says which and why.
    """
    roles = engine.roles(options)
    where = {role: (machines or {}).get(role, Machine()) for role in roles}
    ports = free_ports(Machine().host, len(roles))
    addresses = {role: f"{where[role].host}:{port}" for role, port in zip(roles, ports, strict=True)}
    events: Queue[Event] = Queue()
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    outline = program.outline()
    with ExitStack() as stack:
        for role in roles:
            task = Task(
                role=role,
                program=program if role == "server" else outline,
                addresses=addresses,
                images=images if role == "client" else None,
                count=len(images),
                options=options,
            )
            party = ProcessParty(engine.name, task, threads, where[role].through)
            party.start(events.put)
            stack.callback(party.stop)
        return watch(events, roles, _unconnected)


def _unconnected(roles: list[Role]) -> str:
    return f"the {', '.join(roles)} did not connect within {CONNECT_SECONDS} s: is the machine busy?"


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


if __name__ == "__main__":
    main()
