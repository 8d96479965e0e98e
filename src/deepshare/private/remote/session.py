"""A session of two parties on two machines: their control channel, and one inference beside it.

On the control channel, apart from the engine's own connection, the parties agree on an inference in JSON messages and
tell each other how it ends:

    client: {"protocol"}                       server: {"protocol", "engine", "options", "outline", "about"}
    client: {"images", "address", "outline"}   server: {"start", "token"}
    both:   {"layers", "offline", "session", "seconds"}, or the kind of a failure with its reason
"""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from queue import Queue
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Outcome, Part, Role, Task
from deepshare.private.runtime.party import CONNECT_SECONDS, FAILURES, Event, Party, PartyError, watch

PROTOCOL = 2
# A peer that vanishes without a word is missed within the sum of both.
PING_SECONDS = 5.0
PONG_SECONDS = 10.0
# For both handshakes, also between busy machines.
OPEN_SECONDS = 60.0
LARGEST_MESSAGE = 2**26
ANSWER_SECONDS = 60.0

SETTINGS: dict[str, Any] = {
    "open_timeout": OPEN_SECONDS,
    "compression": None,
    "ping_interval": PING_SECONDS,
    "ping_timeout": PONG_SECONDS,
    "close_timeout": 2.0,
    "max_size": LARGEST_MESSAGE,
}

Message = dict[str, Any]


class PeerError(EngineError):
    """The other party has ended, and said so itself, or is not connected any more.

    Attributes:
        kind: One of `FAILURES`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Control:
    """Messages to and from the other party, each a JSON object."""

    def __init__(self, connection: Connection, peer: Role) -> None:
        self._connection = connection
        self.peer = peer

    @property
    def local_host(self) -> str:
        """The address of this machine that the other party can reach."""
        return str(self._connection.local_address[0])

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            PeerError: The connection is lost.
        """
        try:
            self._connection.send(json.dumps(message))
        except (ConnectionClosed, OSError) as error:
            raise self._lost() from error

    def receive(self, timeout: float | None = ANSWER_SECONDS) -> Message:
        """Wait for a message.

        Raises:
            PeerError: The other party says that it has ended, or is gone.
            EngineError: It does not answer, or speaks something else.
        """
        message = self._message(timeout)
        for kind in FAILURES:
            if kind in message:
                verb = "failed" if kind in ("failed", "lost") else "refused"
                raise PeerError(kind, f"the {self.peer} {verb}: {message[kind]}")
        return message

    def end(self, kind: str, reason: str) -> None:
        """Tell the other party why this one ends, if it still listens."""
        with suppress(EngineError):
            self.send({kind: reason})

    def _message(self, timeout: float | None) -> Message:
        try:
            message = json.loads(self._connection.recv(timeout))
        except TimeoutError:
            raise EngineError(f"the {self.peer} did not answer within {timeout:.0f} s") from None
        except (ConnectionClosed, OSError) as error:
            raise self._lost() from error
        except (ValueError, RecursionError) as error:  # brackets without end
            raise EngineError(f"the {self.peer} does not speak the language of deepshare private") from error
        if not isinstance(message, dict):
            raise EngineError(f"the {self.peer} does not speak the language of deepshare private")
        return message

    def _lost(self) -> PeerError:
        cure = ": ask again; what was dealt for these images may be spent" if self.peer == "server" else ""
        return PeerError("gone", f"the connection to the {self.peer} was lost{cure}")


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
    """Tell the other party of this one's end; a client keeps its reason, which could reveal something of its images."""
    if event.kind == "done":
        with suppress(EngineError):  # a lost connection is noticed by its listener
            control.send(account(event.value))
    elif event.kind in FAILURES:
        control.end(*((event.kind, event.value) if event.role == "server" else ("gone", "it ended the inference")))


def account(outcome: Outcome) -> dict[str, Any]:
    """The other party's view of an outcome: measurements, never results."""
    return {
        "layers": [[number, asdict(part)] for number, part in outcome.layers.items()],
        "offline": asdict(outcome.offline),
        "session": asdict(outcome.session),
        "seconds": outcome.seconds,
    }


def measured(message: dict[str, Any], program: Program) -> Outcome:
    """Read the other party's account.

    Raises:
        EngineError: It is damaged.
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
