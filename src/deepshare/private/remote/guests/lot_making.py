"""The server's side of making lots with a client in advance: a process of its own takes part in it."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from queue import Empty, Queue
from typing import Any

from deepshare.private.ir.program import Program
from deepshare.private.remote.guests.guest import Guest
from deepshare.private.remote.guests.journal import Journal
from deepshare.private.remote.guests.places import Turn, Turns
from deepshare.private.remote.guests.relay import relay
from deepshare.private.runtime.engine import Task
from deepshare.private.runtime.party import Event, ProcessParty
from deepshare.private.transport.channel import LaterError

# While others wait, a client may be silent for so long, and make lots for so long. It loses one unit of its work.
SILENT_SECONDS = 60.0
TURN_SECONDS = 600.0


class LotMaking:
    """Makes lots with clients.

    Args:
        engine: Name of the engine.
        options: Its options.
        turns: Turns at making lots.
        journal: Told how it goes.
    """

    def __init__(self, engine: str, options: Mapping[str, str], turns: Turns, journal: Journal) -> None:
        self._engine, self._options, self._turns, self._journal = engine, options, turns, journal

    def run(self, guest: Guest, turn: Turn, program: Program, extras: Mapping[str, Any]) -> LaterError | None:
        """Make lots in a process, to which all that the guest sends goes on, until either ends or the turn is over.

        Returns:
            The reason for the guest if its turn was over.
        """
        events: Queue[Event] = Queue()
        with ExitStack() as ended:
            ours, theirs = (ended.enter_context(end) for end in socket.socketpair())
            inherited = {"connection": theirs.fileno(), "position": guest.channel.position}
            task = Task(
                role="server",
                program=program,
                addresses={},
                count=0,
                options=self._options,
                extras={**extras, **inherited},
            )
            party = ProcessParty(self._engine, task, inherited=theirs.fileno())
            self._journal.info(f"{guest.who}: lots are being made", client=guest.who)
            ended.callback(party.stop)
            party.start(events.put)
            theirs.close()
            if relay(guest.channel.connection, ours, lambda silent: self._is_over(turn, silent)):
                return LaterError("others wait to make lots: what both have is kept; ask again later")
            ours.close()
            self._log(guest, events)
        return None

    def _is_over(self, turn: Turn, silent: float) -> bool:
        return (silent > SILENT_SECONDS or turn.seconds > TURN_SECONDS) and self._turns.awaited

    def _log(self, guest: Guest, events: "Queue[Event]") -> None:
        with suppress(Empty):
            while (event := events.get(timeout=10.0)).kind == "ready":
                pass
            if event.kind == "done":
                self._journal.info(f"{guest.who}: {event.value.offline.products:,} lots were made", client=guest.who)
            else:
                self._journal.refused(guest.who, "making", f"lots in the making: {event.value}")
            return
        self._journal.refused(guest.who, "making", "lots in the making: its process was still at work when it left")
