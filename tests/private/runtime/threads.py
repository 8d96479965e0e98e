"""Parties in threads of this process, where what they compute is tested, and not that they are processes."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from deepshare.private.runtime import party
from deepshare.private.runtime.engine import Task, find_engine
from deepshare.private.runtime.party import Event, Party, attempt


class ThreadParty:
    """A party in a thread; it reports what `ProcessParty` would."""

    def __init__(self, engine: str, task: Task, threads: int | None = None, through: tuple[str, ...] = ()) -> None:
        assert not through, "a thread is started through nothing"
        self._engine, self._task = engine, task

    def start(self, report: Callable[[Event], None]) -> None:
        """Start the thread."""

        def say(kind: str, value: Any) -> None:
            report(Event(self._task.role, kind, value))

        def run() -> None:
            attempt(lambda ready: find_engine(self._engine).run(self._task, ready), say)

        self._thread = threading.Thread(target=run, name=self._task.role, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for its end; nothing can kill a thread."""
        self._thread.join(60)
        assert not self._thread.is_alive(), f"the {self._task.role} does not end"


def run_parties_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `run_here` starts threads for gateshare; engines of other libraries need processes."""
    process = party.ProcessParty

    def start(engine: str, *rest: Any) -> Party:
        return ThreadParty(engine, *rest) if engine == "gateshare" else process(engine, *rest)

    monkeypatch.setattr(party, "ProcessParty", start)
