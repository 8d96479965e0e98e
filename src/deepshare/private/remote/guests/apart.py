"""The server's part of an engine without pools: a process for each client, with connections of its own."""

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.remote.guests.guest import Guest
from deepshare.private.remote.guests.journal import Journal
from deepshare.private.remote.guests.places import Turn, Turns
from deepshare.private.remote.session import Control, Message, run_session
from deepshare.private.runtime.engine import Outcome, Role, Task
from deepshare.private.runtime.party import ProcessParty, free_ports
from deepshare.private.transport.channel import LaterError, RefusalError
from deepshare.private.transport.tls import Tls

# Clients at once, each with a certificate of its own.
AT_ONCE = 4
# How long a client waits for its turn, and may compute while others wait for theirs.
WAIT_SECONDS = 600.0
TURN_SECONDS = 600.0
LOOK_SECONDS = 0.05


class Apart:
    """Answers clients.

    Args:
        engine: Name of the engine.
        options: Its options.
        tls: Certificates; None on one machine.
        turns: Turns at computing.
        journal: Told who took too long.
    """

    def __init__(
        self, engine: str, options: Mapping[str, str], tls: Tls | None, turns: Turns, journal: Journal
    ) -> None:
        self._engine, self._options, self._tls, self._turns, self._journal = engine, options, tls, turns, journal

    def answer(self, guest: Guest, program: Program, request: Message) -> Outcome:
        """Answer a request, when it is the guest's turn.

        Raises:
            LaterError: Its turn did not come.
            ConnectionError: Either party failed, and the other was told.
        """
        turn = self._wait(guest)
        control, done = Control(guest.channel, "client"), threading.Event()
        try:
            own = f"{control.local_host}:{free_ports(control.local_host, 1)[0]}"
            # No other host than the guest's own: the process connects to it.
            theirs = f"{guest.address.rpartition(':')[0]}:{client_port(request)}"
            addresses: dict[Role, str] = {"server": own, "client": theirs}
            task = Task(
                role="server",
                program=program,
                addresses=addresses,
                count=int(request["images"]),
                tls=self._tls,
                options=self._options,
            )
            threading.Thread(target=self._guard, args=(guest, turn, done), daemon=True).start()
            control.send({"start": dict(addresses)})
            return run_session(ProcessParty(self._engine, task), task, control)[0]
        except EngineError as error:  # the client was told, or told us
            raise ConnectionError(str(error)) from error
        finally:
            done.set()
            self._turns.leave(turn)

    def _wait(self, guest: Guest) -> Turn:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return self._turns.take(guest.identity)
            except LaterError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS)
            if guest.has_hung_up():
                raise ConnectionError("it hung up")

    def _guard(self, guest: Guest, turn: Turn, done: threading.Event) -> None:
        """Cut a client off that computes for too long while others wait."""
        while not done.wait(1.0):
            if turn.seconds > TURN_SECONDS and self._turns.awaited:
                self._journal.refused(guest.who, "late", f"it took more than {TURN_SECONDS:.0f} s, and others wait")
                with suppress(OSError):
                    socket.socket.shutdown(guest.socket, socket.SHUT_RDWR)
                return


def client_port(request: Message) -> int:
    """The port of the client's part.

    Raises:
        RefusalError: There is none.
    """
    port = str(request.get("address")).rpartition(":")[2]
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 1 <= int(port) < 1 << 16):
        raise RefusalError("the client gave no address: install the same deepshare")
    return int(port)
