"""What both sides do once they have agreed: run their party, listen to the other, and end together."""

from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, Queue
from typing import Any, Protocol

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.remote.handshake import Control
from deepshare.private.result import Outcome, Part
from deepshare.private.runtime.engine import Task
from deepshare.private.runtime.local import CONNECT_SECONDS, FAILURES, cause
from deepshare.private.runtime.subprocess_party import Event, failure


class Running(Protocol):
    """A party at work, in a process or in a thread."""

    def stop(self) -> None:
        """End it, wherever it is."""


Start = Callable[[Task, "Queue[Event]"], Running]


class TheirError(EngineError):
    """The other party failed, and said so itself."""


def run_party(start: Start, task: Task, control: Control) -> tuple[Outcome, Outcome]:
    """Run this party's part beside the other's.

    Args:
        start: Starts it.
        task: This party's.
        control: To the other party.

    Returns:
        What this party has and what the other measured.

    Raises:
        EngineError: Either failed, and the other was told why; no process is left.
    """
    events: Queue[Event] = Queue()
    control.forward(events)
    running = start(task, events)
    try:
        return _wait(events, task, control)
    except TheirError:
        raise
    except EngineError as error:
        _end(control, task, "refused", str(error))
        raise
    finally:
        running.stop()


def _wait(events: "Queue[Event]", task: Task, control: Control) -> tuple[Outcome, Outcome]:
    done: dict[str, Outcome] = {}
    connected = False
    while len(done) < 2:
        try:
            role, kind, value = events.get(timeout=None if connected and not done else CONNECT_SECONDS)
        except Empty:
            if done:
                raise EngineError(f"the {control.peer} did not end within {CONNECT_SECONDS} s of this party") from None
            raise EngineError(
                f"the parties did not connect within {CONNECT_SECONDS} s: {task.addresses} must reach each other"
            ) from None
        if kind in FAILURES:
            if role == task.role:
                _end(control, task, kind, value)  # at once: the other party waits for a reason
            at_fault, reason = cause(events, (role, kind, value), {task.role, control.peer} - set(done))
            if at_fault == control.peer:
                raise TheirError(reason)
            _end(control, task, "refused", reason)
            raise failure(at_fault, reason)
        connected = True
        if kind == "done":
            done[role] = value if role == task.role else measured(value, task.program)
            if role == task.role:
                control.send(told(value))
    return done[task.role], done[control.peer]


def _end(control: Control, task: Task, kind: str, reason: str) -> None:
    """Tell the other party what it may know: why, and how, a client ends can be a fact about its images."""
    control.end(*((kind, reason) if task.role == "server" else ("gone", "it ended the inference")))


def told(outcome: Outcome) -> dict[str, Any]:
    """What one party tells the other of its outcome: what it measured, never what it computed."""
    return {
        "layers": [[number, asdict(part)] for number, part in outcome.layers.items()],
        "offline": asdict(outcome.offline),
        "session": asdict(outcome.session),
        "seconds": outcome.seconds,
    }


def measured(message: dict[str, Any], program: Program) -> Outcome:
    """Read what the other party measured.

    Raises:
        EngineError: It is something else.
    """
    try:
        layers = {int(number): _part(part) for number, part in message["layers"]}
        if not all(0 <= number < len(program.operations) for number in layers):
            raise ValueError("no such layer")
        offline, session = _part(message["offline"]), _part(message["session"])
        return Outcome(None, layers, offline, session, float(message["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EngineError(f"the other party's account of its cost is damaged ({error})") from error


def _part(values: dict[str, Any]) -> Part:
    numbers: dict[str, Any] = {name: float(v) if name == "seconds" else int(v) for name, v in values.items()}
    return Part(**numbers)
