"""Whose failure it was, where one party takes the others with it."""

import threading
import time
from queue import Queue

import pytest

from deepshare.private.runtime import local
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.local import cause
from deepshare.private.runtime.subprocess_party import Event

ALL: set[Role] = {"server", "client", "dealer"}


def queued(*events: Event) -> "Queue[Event]":
    queue: Queue[Event] = Queue()
    for event in events:
        queue.put(event)
    return queue


def test_a_reason_that_comes_late_is_waited_for() -> None:
    events = queued(("dealer", "ready", None))
    timer = threading.Timer(1.5, events.put, [("server", "refused", "the pool is spent")])
    timer.start()
    started = time.monotonic()
    assert cause(events, ("client", "lost", "ConnectionError: it hung up"), ALL) == ("server", "the pool is spent")
    assert time.monotonic() - started < local.GRACE_SECONDS


def test_a_reason_is_waited_for_no_longer_than_there_is_somebody_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 60.0)
    started = time.monotonic()
    lost: Event = ("client", "lost", "ConnectionError: it hung up")
    assert cause(queued(), ("server", "refused", "no"), ALL) == ("server", "no")
    others: tuple[Event, Event] = ("server", "failed", "its process ended"), ("dealer", "lost", "it hung up")
    assert cause(queued(*others), lost, ALL) == ("server", "its process ended")
    assert cause(queued(), lost, {"client"}) == ("client", lost[2])
    gone: Event = ("server", "gone", "connection lost")
    assert cause(queued(gone), lost, ALL) == cause(queued(), gone, ALL) == ("server", gone[2])
    assert time.monotonic() - started < 30
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.2)
    assert cause(queued(), lost, ALL) == ("client", lost[2])
