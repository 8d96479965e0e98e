"""The front door: one port, and one thread that waits for everybody whom no thread serves.

A connection is a *guest*. It shows its certificate, then says messages, and only a guest that was given a place gets a
thread. Guests without a certificate are few and have little time. Of too many the ones that have waited longest go, and
where all came just now, newcomers of the host that has most are turned away: whoever floods the door from one address
is in nobody's way but its own. So nobody who is silent, slow or a stranger costs more than a descriptor.
"""

import errno
import resource
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from deepshare.private.remote.guests.guest import Guest, Reply, Stage, Work
from deepshare.private.remote.guests.journal import LOGGER
from deepshare.private.remote.guests.strangers import Strangers
from deepshare.private.remote.guests.watchdog import Watchdog
from deepshare.private.transport.channel import Channel, LaterError, PeerError, RefusalError

# For a certificate, and then for the first message.
GREETING_SECONDS = 10.0
# A stranger may stay this long even if there are too many, unless its host has most of them.
GRACE_SECONDS = 1.0
# How long a guest that was refused may go on sending before its connection is cut: cut at once, it would lose the
# reason on the way.
LINGER_SECONDS = 3.0
PAUSE_SECONDS = 0.05
MOST_STRANGERS, MOST_GUESTS = 512, 4096
GUESTS_OF_ONE = 64
# Newcomers in a row, before it is the turn of those that are here.
_AT_A_TIME = 64
_CUT = struct.pack("ii", 1, 0)
_STOPPING = LaterError("the server is stopping: ask again later")
_BANNED = LaterError("a connection with this certificate kept the server busy with nothing: ask again later")
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class FrontDoor:
    """Waits for guests.

    Args:
        listener: Listening socket.
        context: TLS; None without.
        heard: Called with a guest and a message of it, by the door's thread; raises a RefusalError to send it away.
        left: Called when a guest is gone, or was refused, with the reason.
        make_channel: Makes the channel of a connection.

    Attributes:
        turned_away: Number of connections that were closed at once, since their host has too many.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        *,
        heard: Callable[[Guest, dict[str, Any]], Reply | Work],
        left: Callable[[Guest, str], None],
        make_channel: Callable[[socket.socket], Channel],
    ) -> None:
        self.listener, self._context, self._heard, self._left = listener, context, heard, left
        self._make_channel = make_channel
        self._selector = selectors.DefaultSelector()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._woken, self._wake = socket.socketpair()
        self._guests: dict[Guest, None] = {}
        self._strangers, self.turned_away = Strangers(), 0
        self._watchdog = Watchdog(lambda: list(self._guests))
        self._open, self._stopping, self._accept_at, self._sweep_at = True, False, 0.0, 0.0
        limit = raise_limit()
        self._most_strangers = min(MOST_STRANGERS, limit // 4)
        self._most_guests = min(MOST_GUESTS, limit // 2)
        for one in (listener, self._woken, self._wake):
            one.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def connections(self) -> int:
        """Number of guests."""
        return len(self._guests)

    def run(self) -> None:
        """Wait until `stop`."""
        with self._watchdog:
            while self._open:
                try:
                    self._look()
                except Exception as error:  # a fault of ours, which must not end the server for everybody
                    LOGGER.error("a fault at the front door: %s", type(error).__name__, exc_info=error)
                    time.sleep(PAUSE_SECONDS)
        for guest in list(self._guests):
            if guest.stage == "working":  # its thread closes it
                with suppress(OSError):
                    socket.socket.shutdown(guest.socket, socket.SHUT_RDWR)
            else:
                self._drop(guest, "")
        self.listener.close()
        self._selector.close()

    def stop(self) -> None:
        """From another thread: end `run`, and cut all connections."""

        def end() -> None:
            self._open = False

        self._tell(end)

    def stop_accepting(self) -> None:
        """From another thread: accept no more connections, and send away those that nobody works for."""

        def end() -> None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self.listener)
            self.listener.close()
            self._stopping, self._accept_at = True, 0.0
            for guest in list(self._guests):
                if guest.stage in ("handshake", "listening", "parked"):
                    self._refuse(guest, _STOPPING)

        self._tell(end)

    def listen_to(self, guest: Guest, seconds: float) -> None:
        """From a guest's thread: wait for its next message."""
        self._tell(lambda: self._await(guest, "listening", seconds))

    def park(self, guest: Guest, resume: Callable[[], None], seconds: float) -> None:
        """From a guest's thread: go on with `resume`, in another thread, when the guest has sent something."""
        guest.resume = resume
        self._tell(lambda: self._await(guest, "parked", seconds))

    def refuse(self, guest: Guest, error: RefusalError) -> None:
        """From a guest's thread: send it away with a reason."""
        self._tell(lambda: self._refuse(guest, error))

    def refuse_parked(self, guest: Guest, error: RefusalError) -> bool:
        """From the door's thread: send a guest away, if nobody works for it; returns whether."""
        if guest.stage != "parked":
            return False
        self._refuse(guest, error)
        return True

    def leave(self, guest: Guest) -> None:
        """From a guest's thread: its connection is lost."""
        self._tell(lambda: self._drop(guest, ""))

    def _tell(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        with suppress(OSError):  # the door is closed, or has been woken often enough
            self._wake.send(b"\0")

    def _obey(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(1 << 12)
        with suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _await(self, guest: Guest, stage: Stage, seconds: float) -> None:
        """Wait for a guest that a thread has served."""
        if self._stopping:
            self._refuse(guest, _STOPPING)
        else:
            self._watch(guest, stage, seconds)

    def _look(self) -> None:
        """Wait for something to happen, and do what it takes."""
        for key, _ in self._selector.select(max(0.0, self._sweep_at - time.monotonic())):
            if key.fileobj is self.listener:
                self._accept()
            elif key.data in self._guests:
                self._attend(key.data)
        self._obey()
        if time.monotonic() >= self._sweep_at:
            self._sweep()

    def _accept(self) -> None:
        """Let in those that knock, or turn them away: if they waited outside, nobody else could come."""
        try:
            for _ in range(_AT_A_TIME):
                connection, (host, port) = self.listener.accept()
                if self._make_room(host):
                    self._admit(connection, host, port)
                else:
                    self._turn_away(connection)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _FULL:
                return  # a guest that hung up before it was let in
            if self._strangers:
                self._drop(self._strangers.oldest(self._strangers.busiest()), "too many connections")
            self._selector.unregister(self.listener)
            self._accept_at = self._sweep_at = time.monotonic() + PAUSE_SECONDS

    def _turn_away(self, connection: socket.socket) -> None:
        self.turned_away += 1
        with suppress(OSError):  # without waiting for its answer, which would keep the kernel busy
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CUT)
        connection.close()

    def _admit(self, connection: socket.socket, host: str, port: int) -> None:
        connection.setblocking(False)
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            guest = Guest(self._make_channel(connection), f"{host}:{port}", host)
        except OSError:  # it has hung up
            connection.close()
            return
        self._guests[guest] = None
        self._strangers.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._watch(guest, "handshake" if self._context else "listening", GREETING_SECONDS)

    def _make_room(self, host: str) -> bool:
        """Make room for a newcomer, if need be by sending another away; returns whether there is some.

        Of strangers goes the oldest of the host that has most. One that came this second stays, since its certificate
        may be on its way: nobody can push out a client by coming after it, however often. Only for a host with fewer
        does the host with most give one up all the same. Where there are no strangers, whoever has most connections
        that ask nothing loses one.
        """
        strangers = self._strangers
        if len(strangers) < self._most_strangers and len(self._guests) < self._most_guests:
            return True
        if strangers:
            busiest = strangers.busiest()
            gone: Guest | None = strangers.oldest(busiest)
            if strangers.oldest(busiest).since > time.monotonic() - GRACE_SECONDS:
                gone = strangers.newest(busiest) if strangers.of(host) + 1 < strangers.of(busiest) else None
        else:
            gone = self._idle()
        if gone is not None:
            self._drop(gone, "too many connections")
        return gone is not None

    def _idle(self) -> Guest | None:
        """The oldest guest that asks nothing of the certificate that has most of them, if it has several."""
        whose = {guest: guest.identity for guest in self._guests if guest.stage in ("listening", "replying")}
        most, count = Counter(whose.values()).most_common(1)[0] if whose else ("", 0)
        return next(guest for guest, owner in whose.items() if owner == most) if count > 1 else None

    def _sweep(self) -> None:
        """Send away whoever has been silent for too long, and find out when to look again."""
        now = time.monotonic()
        if self._accept_at and now >= self._accept_at and self.listener.fileno() >= 0:
            self._accept_at = 0.0
            self._selector.register(self.listener, selectors.EVENT_READ)
        for guest in [one for one in self._guests if one.stage != "working" and one.deadline <= now]:
            if guest.stage in ("listening", "parked") and guest.state is not None:
                self._refuse(guest, LaterError("nothing came for too long: connect again"))
            else:
                self._drop(guest, "it was silent")
        soonest = min((guest.deadline for guest in self._guests if guest.stage != "working"), default=float("inf"))
        self._sweep_at = min(max(soonest, now + PAUSE_SECONDS), self._accept_at or now + 1.0)

    def _watch(self, guest: Guest, stage: Stage, seconds: float) -> None:
        if guest not in self._guests:
            return
        guest.stage, guest.deadline = stage, time.monotonic() + seconds
        self._sweep_at = min(self._sweep_at, guest.deadline)
        guest.socket.setblocking(False)
        event = selectors.EVENT_WRITE if stage == "replying" else selectors.EVENT_READ
        try:
            self._selector.modify(guest.socket, event, guest)
        except KeyError:
            self._selector.register(guest.socket, event, guest)
        if isinstance(guest.socket, ssl.SSLSocket) and stage in ("listening", "parked") and guest.socket.pending():
            self._attend(guest)

    def _attend(self, guest: Guest) -> None:
        try:
            match guest.stage:
                case "handshake":
                    self._shake_hands(guest)
                case "listening" | "parked" if self._watchdog.is_banned(guest):
                    raise _BANNED
                case "listening":
                    self._listen(guest)
                case "replying":
                    self._reply(guest)
                case "parked" if guest.has_hung_up():  # it wants nothing more
                    self._drop(guest, "")
                case "parked":
                    self._start(guest, guest.resume)
                case "lingering":
                    if not socket.socket.recv(guest.socket, 1 << 18):
                        self._drop(guest, "")
        except (ssl.SSLWantReadError, BlockingIOError):
            if guest.stage == "handshake":
                self._selector.modify(guest.socket, selectors.EVENT_READ, guest)
        except ssl.SSLWantWriteError:
            self._selector.modify(guest.socket, selectors.EVENT_WRITE, guest)
        except RefusalError as error:
            self._refuse(guest, error)
        except ssl.SSLError as error:
            self._linger(guest, f"no TLS ({error.reason or error})")  # its alert is on the way
        except (OSError, ValueError, PeerError) as error:
            self._drop(guest, str(error))
        except Exception:
            self._drop(guest, "a fault of the server")
            raise

    def _shake_hands(self, guest: Guest) -> None:
        guest.show_certificate()
        if sum(other.identity == guest.identity for other in self._guests) > GUESTS_OF_ONE:
            raise LaterError(f"this certificate has {GUESTS_OF_ONE} connections already: close some")
        self._watch(guest, "listening", GREETING_SECONDS)

    def _listen(self, guest: Guest) -> None:
        message = guest.read_message()
        if message is None:
            self._drop(guest, "")
            return
        answer = self._heard(guest, message)
        self._strangers.remove(guest)
        match answer:
            case Reply(parts, seconds):
                guest.replies = [memoryview(part) for part in parts]
                self._watch(guest, "replying", seconds)
                self._reply(guest)
            case Work(run):
                self._start(guest, run)

    def _reply(self, guest: Guest) -> None:
        guest.send_replies()
        self._watch(guest, "listening", max(0.0, guest.deadline - time.monotonic()))

    def _start(self, guest: Guest, run: Callable[[], None] | None) -> None:
        if run is None:
            raise AssertionError("nothing to do")
        self._selector.unregister(guest.socket)
        guest.stage, guest.resume = "working", None
        guest.socket.setblocking(True)
        threading.Thread(target=run, name=f"session {guest.address}", daemon=True).start()

    def _refuse(self, guest: Guest, error: RefusalError) -> None:
        if guest not in self._guests or guest.stage == "lingering":
            return
        with suppress(OSError, ValueError):
            guest.socket.setblocking(False)
            guest.socket.send(guest.channel.failure(str(error), later=isinstance(error, LaterError)))
        self._linger(guest, str(error))

    def _linger(self, guest: Guest, reason: str) -> None:
        with suppress(OSError):
            socket.socket.shutdown(guest.socket, socket.SHUT_WR)
        self._left(guest, reason)
        self._watch(guest, "lingering", LINGER_SECONDS)

    def _drop(self, guest: Guest, reason: str) -> None:
        if guest not in self._guests:
            return
        del self._guests[guest]
        self._strangers.remove(guest)
        with suppress(KeyError, ValueError):
            self._selector.unregister(guest.socket)
        with self._watchdog.closing:
            guest.channel.close()
        if guest.stage != "lingering":
            self._left(guest, reason)


def raise_limit() -> int:
    """Raise this process's soft limit of descriptors to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # not allowed here
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
