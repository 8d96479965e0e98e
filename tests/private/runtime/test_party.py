"""The wait for several parties: outcomes, limits, and the root cause where one party takes the others with it."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import pytest
from torch import nn

from deepshare.errors import EngineError
from deepshare.private.ir.trace import translate
from deepshare.private.runtime import party
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import Event, PartyError, attempt, root_cause, watch

ALL: set[Role] = {"server", "client", "dealer"}
DONE = Outcome(None, {})
LOST = Event("client", "lost", "ConnectionError: it hung up")


def queued(*events: Event) -> "Queue[Event]":
    queue: Queue[Event] = Queue()
    for event in events:
        queue.put(event)
    return queue


def cause(events: "Queue[Event]", first: Event, running: set[Role]) -> tuple[Role, str]:
    error = root_cause(events, first, running)
    assert str(error) == f"the {error.role} failed: {error.reason}"
    return error.role, error.reason


def test_a_reason_that_comes_late_is_waited_for() -> None:
    events = queued(Event("dealer", "ready"))
    timer = threading.Timer(1.5, events.put, [Event("server", "refused", "the pool is spent")])
    timer.start()
    started = time.monotonic()
    assert cause(events, LOST, ALL) == ("server", "the pool is spent")
    assert time.monotonic() - started < party.GRACE_SECONDS


def test_a_reason_is_waited_for_no_longer_than_there_is_somebody_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "GRACE_SECONDS", 60.0)
    started = time.monotonic()
    assert cause(queued(), Event("server", "refused", "no"), ALL) == ("server", "no")
    others = Event("server", "failed", "its process ended"), Event("dealer", "lost", "it hung up")
    assert cause(queued(*others), LOST, ALL) == ("server", "its process ended")
    assert cause(queued(), LOST, {"client"}) == ("client", LOST.value)
    gone = Event("server", "gone", "connection lost")
    assert cause(queued(gone), LOST, ALL) == cause(queued(), gone, ALL) == ("server", gone.value)
    assert time.monotonic() - started < 30
    monkeypatch.setattr(party, "GRACE_SECONDS", 0.2)
    assert cause(queued(), LOST, ALL) == ("client", LOST.value)


def unconnected(roles: list[Role]) -> str:
    return f"no {', '.join(roles)}"


def test_outcomes_of_all_parties() -> None:
    ready = [Event(role, "ready") for role in ALL]
    done = [Event(role, "done", DONE) for role in ALL]
    assert watch(queued(*ready, *done), ALL, unconnected) == dict.fromkeys(ALL, DONE)


def test_a_failure_ends_the_wait() -> None:
    with pytest.raises(PartyError, match="the server failed: no"):
        watch(queued(Event("dealer", "done", DONE), Event("server", "refused", "no")), ALL, unconnected)


def test_limits_for_the_connection_and_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "CONNECT_SECONDS", 0.1)
    with pytest.raises(EngineError, match=r"^no client, server$"):
        watch(queued(Event("dealer", "done", DONE)), ALL, unconnected)
    events = queued(Event("client", "ready"), Event("server", "ready"), Event("server", "done", DONE))
    with pytest.raises(EngineError, match=r"the client did not end within 0\.2 s of the other party"):
        watch(events, ("server", "client"), unconnected, 0.2)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EngineError("no"), ("refused", "no")),
        (ConnectionResetError("by peer"), ("lost", "ConnectionResetError: by peer")),
        (KeyError("x"), ("failed", "KeyError: 'x'")),
        (None, ("done", DONE)),
    ],
)
def test_the_end_of_a_part_is_told_by_its_kind(error: Exception | None, told: tuple[str, object]) -> None:
    heard: list[tuple[str, object]] = []

    def run(ready: object) -> Outcome:
        if error is not None:
            raise error
        return DONE

    attempt(run, lambda kind, value: heard.append((kind, value)))
    assert heard == [told]


@pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "task").write_bytes(_waiting_task())
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'deepshare.private.runtime.party'], stdin=subprocess.PIPE)\n"
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
