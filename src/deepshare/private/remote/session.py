"""A session of two parties on two machines: their control channel, and one inference beside it.

A client and a server speak on one connection. First they agree:

    client: {"protocol", "network"}       server: {"protocol", "engine", "options", "outline", "about", "dealings"}
    client: {"images", "outline", ...}    server: {"start", ...}

With an engine that hosts many clients the inference follows on the same connection, and at its end the server's account
of its cost; then the client may ask again. All other engines have connections of their own. Beside them the parties
tell each other on this one that they are alive, and how it ends:

    both:   {"layers", "offline", "session", "seconds"}, or the kind of a failure with its reason
"""

import selectors
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Queue
from typing import Any

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome, account, measured
from deepshare.private.runtime.party import CONNECT_SECONDS, FAILURES, Event, Party, PartyError, watch
from deepshare.private.transport.channel import LONGEST_REASON, Channel, PeerError
from deepshare.text import printable

PROTOCOL = 3
# A peer that vanishes without a word is missed within the sum of both.
PING_SECONDS = 5.0
PONG_SECONDS = 10.0
LONGEST_OFFER = 1 << 26

Message = dict[str, Any]


class EndedError(PeerError):
    """The other party has ended, or is not connected any more.

    Attributes:
        kind: One of `FAILURES`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Control:
    """Messages to and from the other party, from several threads, on a channel that nobody else uses."""

    def __init__(self, channel: Channel, peer: Role) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self.peer = peer

    @property
    def local_host(self) -> str:
        """The address of this machine that the other party can reach."""
        return str(self._channel.connection.getsockname()[0])

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            EndedError: The connection is lost.
        """
        try:
            with self._lock:
                self._channel.send_message(message)
        except (ConnectionError, OSError, ValueError) as error:
            raise self._lost() from error

    def receive(self, *, patient: bool = False) -> Message:
        """Wait for a message; one that says that the other party is alive only means that it is.

        Args:
            patient: Whether to wait for a party that does not say yet that it is alive.

        Raises:
            EndedError: The other party says that it has ended, or is gone.
            EngineError: It speaks something else.
        """
        try:
            while True:
                self._wait(None if patient else PING_SECONDS + PONG_SECONDS)
                with self._lock:
                    message = self._channel.receive_message()
                if "alive" not in message:
                    break
        except (ConnectionError, OSError, ValueError) as error:
            raise self._lost() from error
        for kind in FAILURES:
            if kind in message:
                verb = "failed" if kind in ("failed", "lost") else "refused"
                # A client's own words stay out of the server's log.
                said = f": {printable(str(message[kind]))[:LONGEST_REASON]}" if self.peer == "server" else ""
                raise EndedError(kind, f"the {self.peer} {verb}{said}")
        return message

    def end(self, kind: str, reason: str) -> None:
        """Tell the other party why this one ends, if it still listens."""
        with suppress(EngineError):
            self.send({kind: reason})

    def _wait(self, seconds: float | None) -> None:
        """Until there is something to read; meanwhile others may send."""
        connection = self._channel.connection
        if isinstance(connection, ssl.SSLSocket) and connection.pending():
            return
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise ConnectionError("it is silent")

    def _lost(self) -> EndedError:
        cure = ": ask again" if self.peer == "server" else ""
        return EndedError("gone", f"the connection to the {self.peer} was lost{cure}")


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
            report(Event(peer, "done", measured(self._control.receive(), self._program)))
        except EngineError as error:
            report(Event(peer, error.kind if isinstance(error, EndedError) else "refused", str(error)))


def run_session(party: Party, task: Task, control: Control) -> tuple[Outcome, Outcome]:
    """Run this party's part beside the other's.

    Args:
        party: This party.
        task: Its task.
        control: Channel to the other party.

    Returns:
        This party's outcome, and the measurements of the other.

    Raises:
        EndedError: The other party failed.
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

    def alive() -> None:
        with suppress(EngineError):
            while not over.wait(PING_SECONDS):
                control.send({"alive": True})

    PeerParty(control, task.program).start(events.put)
    threading.Thread(target=alive, daemon=True).start()
    party.start(report)
    try:
        outcomes = watch(events, (task.role, control.peer), unconnected, CONNECT_SECONDS)
    except PartyError as error:
        if error.role == control.peer:
            raise EndedError("gone", error.reason) from error
        raise
    except EngineError as error:
        _tell(control, Event(task.role, "refused", str(error)))
        raise
    finally:
        over.set()
        party.stop()
    return outcomes[task.role], outcomes[control.peer]


def _tell(control: Control, event: Event) -> None:
    """Tell the other party of this one's end.

    A client keeps its reason, which could reveal something of its images; a server the words of libraries, in which
    there may be paths.
    """
    if event.kind == "done":
        with suppress(EngineError):  # a lost connection is noticed by its listener
            control.send(account(event.value))
    elif event.kind in FAILURES:
        said = event.value if event.kind == "refused" else "its log says why"
        control.end(*((event.kind, said) if event.role == "server" else ("gone", "it ended the inference")))
