"""Guests that a process of the server serves: with an engine without pools, or while lots are made.

A process of its own reads what a stranger's ciphertexts do to a library, so that the server survives it. An engine
without pools has connections of its own. Lots are made over the guest's connection, which is relayed: TLS ends here,
since its state cannot move to another process, and the two talk through a socket that nobody else sees.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from queue import Empty, Queue
from typing import Any

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.remote.guests.guest import Guest
from deepshare.private.remote.guests.journal import Journal
from deepshare.private.remote.guests.places import Turn, Turns
from deepshare.private.remote.session import Control, Message, run_session
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import Event, ProcessParty, free_ports
from deepshare.private.transport.channel import HEADER, Channel, LaterError, RefusalError
from deepshare.private.transport.tls import Tls

# Clients of an engine without pools at once, each with a certificate of its own.
AT_ONCE = 4
# How long one waits for its turn.
WAIT_SECONDS = 600.0
LOOK_SECONDS = 0.05
# While others wait, a client may compute or make lots for so long, and be silent for so long while it makes them. Then
# it loses one unit of its work.
TURN_SECONDS = 600.0
SILENT_SECONDS = 60.0

_CHUNK = 1 << 18
_MOST = 1 << 22  # bytes on their way in one direction
_RELAY_SECONDS = 0.5
# For the rest of a frame that is on its way when a client's time is over.
_REST_SECONDS = 3.0
_NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Apart:
    """Answers clients of an engine without pools.

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
            if relay(guest.channel, ours, lambda silent: self._is_over(turn, silent)):
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


class _RelayedFrames:
    """How far the frames are that have passed: one that is cut would hide the reason that follows."""

    def __init__(self) -> None:
        self._header, self._left = b"", 0

    @property
    def left(self) -> int:
        """Bytes to read before more can be known; 0 between two frames."""
        return self._left or (HEADER.size - len(self._header) if self._header else 0)

    def pass_on(self, data: bytes) -> None:
        """Note bytes that have passed."""
        while data:
            if self._left:
                step = min(self._left, len(data))
                self._left -= step
            else:
                step = min(HEADER.size - len(self._header), len(data))
                self._header += data[:step]
                if len(self._header) == HEADER.size:
                    self._left, self._header = int(HEADER.unpack(self._header)[3]), b""
            data = data[step:]


def relay(channel: Channel, process: socket.socket, over: Callable[[float], bool]) -> bool:
    """Relay between two sockets, in this thread alone, until one hangs up and all that it sent has arrived.

    Args:
        channel: The client's.
        process: The connection of the process.
        over: Called now and then with the seconds since the client sent something: whether its time is over.

    Returns:
        Whether the client's time was over; then it has whole frames, and a reason may follow.
    """
    client = channel.connection
    for one in (client, process):
        one.setblocking(False)
    recv: dict[socket.socket, Callable[[int], bytes]] = {client: channel.read_ready, process: process.recv}
    waiting = {client: bytearray(), process: bytearray()}
    other = {client: process, process: client}
    ended: set[socket.socket] = set()
    frames, heard, end = _RelayedFrames(), time.monotonic(), 0.0
    while not any(one in ended and not waiting[other[one]] for one in waiting):
        if not end and over(time.monotonic() - heard):
            end = time.monotonic() + _REST_SECONDS
        if end and ((not frames.left and not waiting[client]) or time.monotonic() > end):
            return True
        moved, hung_up = False, len(ended)
        for one, peer in other.items():
            most = frames.left if end and one is process else _CHUNK
            got = b"" if one in ended else _read(recv[one], waiting[peer], most)
            if got is None:
                ended.add(one)
            if got and one is client:
                heard = time.monotonic()
            elif got:
                frames.pass_on(got)
            moved |= bool(got) | _write(peer, waiting[peer], ended)
        if not moved and len(ended) == hung_up:
            readers = [one for one in waiting if one not in ended and len(waiting[other[one]]) < _MOST]
            if end and not frames.left and process in readers:
                readers.remove(process)
            writers = [one for one, data in waiting.items() if data and one not in ended]
            _wait(readers, writers)
    return False


def _wait(readers: list[socket.socket], writers: list[socket.socket]) -> None:
    """Wait until one is ready; descriptors may be beyond what select takes."""
    poll = select.poll()
    for one in {*readers, *writers}:
        poll.register(one, (select.POLLIN if one in readers else 0) | (select.POLLOUT if one in writers else 0))
    poll.poll(1000 * _RELAY_SECONDS)


def _read(recv: Callable[[int], bytes], data: bytearray, most: int) -> bytes | None:
    """What has come, onto what waits; None if that was all."""
    if len(data) >= _MOST or not most:
        return b""
    try:
        got = recv(min(most, _CHUNK))
    except _NOT_READY:
        return b""
    except OSError:
        return None
    data += got
    return got or None


def _write(target: socket.socket, data: bytearray, ended: set[socket.socket]) -> bool:
    if not data:
        return False
    if target in ended:
        data.clear()
        return True
    try:
        sent = target.send(memoryview(data)[:_CHUNK].tobytes())
    except _NOT_READY:
        return False
    except OSError:
        ended.add(target)
        data.clear()
        return True
    del data[:sent]
    return True
