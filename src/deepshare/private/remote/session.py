"""One inference between two machines: this party's part, the other's reports, and one end for both."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from queue import Queue
from typing import Any

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.remote.handshake import Control, PeerError
from deepshare.private.runtime.engine import Outcome, Part, Role, Task
from deepshare.private.runtime.party import CONNECT_SECONDS, FAILURES, Event, Party, PartyError, watch


class PeerParty:
    """The other party: its reports come over the control channel."""

    def __init__(self, control: Control, program: Program) -> None:
        self._control, self._program = control, program

    def start(self, report: Callable[[Event], None]) -> None:
        """Listen; it is connected for as long as the control channel is."""
        report(Event(self._control.peer, "ready"))
        threading.Thread(target=self._listen, args=(report,), daemon=True).start()

    def stop(self) -> None:
        """It ends with its connection."""

    def _listen(self, report: Callable[[Event], None]) -> None:
        peer = self._control.peer
        try:
            report(Event(peer, "done", measured(self._control.receive(None), self._program)))
        except EngineError as error:
            report(Event(peer, error.kind if isinstance(error, PeerError) else "refused", str(error)))


def run_session(party: Party, task: Task, control: Control) -> tuple[Outcome, Outcome]:
    """Run this party's part beside the other's.

    Args:
        party: This party.
        task: Its task.
        control: Channel to the other party.

    Returns:
        This party's outcome, and the measurements of the other.

    Raises:
        PeerError: The other party failed.
        EngineError: This party failed, and the other was told why; no process is left.
    """
    events: Queue[Event] = Queue()
    over = threading.Event()

    def report(event: Event) -> None:
        if not over.is_set():
            _tell(control, event)  # at once: the other party waits for a reason
        events.put(event)

    def unconnected(_: list[Role]) -> str:
        return f"the parties did not connect within {CONNECT_SECONDS} s: {task.addresses} must reach each other"

    PeerParty(control, task.program).start(events.put)
    party.start(report)
    try:
        outcomes = watch(events, (task.role, control.peer), unconnected, CONNECT_SECONDS)
    except PartyError as error:
        if error.role == control.peer:
            raise PeerError("gone", error.reason) from error
        raise
    except EngineError as error:
        _tell(control, Event(task.role, "refused", str(error)))
        raise
    finally:
        over.set()
        party.stop()
    return outcomes[task.role], outcomes[control.peer]


def _tell(control: Control, event: Event) -> None:
    """Tell the other party what it may know: why, and how, a client ends can be a fact about its images."""
    if event.kind == "done":
        with suppress(EngineError):  # a lost connection is noticed by who listens on it
            control.send(account(event.value))
    elif event.kind in FAILURES:
        control.end(*((event.kind, event.value) if event.role == "server" else ("gone", "it ended the inference")))


def account(outcome: Outcome) -> dict[str, Any]:
    """The message about an outcome for the other party: measurements, never results."""
    return {
        "layers": [[number, asdict(part)] for number, part in outcome.layers.items()],
        "offline": asdict(outcome.offline),
        "session": asdict(outcome.session),
        "seconds": outcome.seconds,
    }


def measured(message: dict[str, Any], program: Program) -> Outcome:
    """Read the other party's account.

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
