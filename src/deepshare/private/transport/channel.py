"""Channels: frames between two parties, each with a header that names it; unexpected frames are refused.

Everything about a frame but its content is known beforehand. A wrong one is refused by its header, before anything is
read or allocated for it. Hence plain sockets, with TLS where there are certificates: websockets reads a message before
it can be inspected, and takes about four times the CPU, a tenth of an inference (benchmarks/transport.py).
"""

import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.transport.tls import Tls
from deepshare.text import printable

# Session, number of the frame in its direction, step, bytes that follow.
HEADER = struct.Struct("<16sIIQ")
MESSAGE, FAILURE, BUSY = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
LONGEST_MESSAGE, LONGEST_REQUEST = 1 << 20, 1 << 16
"""Bytes of a message, and of one from a client to its server."""
MOST_VALUES = 1 << 19
"""Values in a message: a list of lists takes twenty times the memory of its text."""
LONGEST_REASON = 1 << 12
_BEFORE_SIZE = HEADER.size - 8
_NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LAST_WORDS, _LAST_SECONDS = 1 << 20, 1.0
CONNECT_SECONDS = 60.0
# A peer whose machine is gone is missed after about the sum: idle, then so many probes.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
# The longest that a peer may stay silent, and the fewest bytes a second that it sends after that.
SILENCE_SECONDS = 300.0
SLOWEST = 1 << 16

Buffer = bytes | bytearray | memoryview
Watch = Callable[[bool, str, bytes], None]


class RefusalError(EngineError):
    """An error whose reason the other party may read: it is about what that party sent, and tells nothing else."""


class LaterError(RefusalError):
    """A refusal that passes: the other party may ask again soon, or elsewhere."""


class LeftError(ConnectionError):
    """The other party hung up before it asked anything that would have an answer."""


class PeerError(EngineError):
    """The other party has ended, and said so itself."""


class PeerBusyError(PeerError):
    """The other party has ended, and may be asked again soon."""


class Channel:
    """One party's end of a connection. A frame that is not the one expected ends the inference.

    Args:
        connection: A connected socket.
        peer: The party at the other end.

    Attributes:
        peer: The party at the other end.
        session: Frames of another session are refused.
        sent: Payload bytes so far; headers and messages are not payload.
        names: Gives a step its name in errors.
        longest: Size of the longest message that is read.
        silence: The longest silence of the peer in seconds; None for the usual one.
        watch: Told of every frame of payload: whether it was sent, the name of its step, its bytes.
        reading: Since when the socket is being read, without waiting; 0 while it is not. TLS goes on for as long as
            records come that hold nothing.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer, self.sent, self.session, self.longest = peer, 0, bytes(16), LONGEST_MESSAGE
        self.names: Callable[[int], str] = str
        self.silence: float | None = None
        self.watch: Watch | None = None
        self.reading = 0.0
        self._socket = connection
        self._outward = self._inward = 0
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):  # not on every system
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def connection(self) -> socket.socket:
        """Its socket."""
        return self._socket

    def send(self, step: int, *parts: Tensor | NDArray[Any] | Buffer) -> None:
        """Send one frame of payload."""
        views = [_bytes(part) for part in parts]
        self.sent += sum(len(view) for view in views)
        self._send(step, views)
        if self.watch is not None:
            self.watch(True, self.names(step), b"".join(views))

    def read_ready(self, size: int) -> bytes:
        """Bytes that are there already, from a socket that does not block; none if the peer has hung up.

        Raises:
            BlockingIOError: There are none yet; or one of TLS's own errors of that kind.
        """
        self.reading = time.monotonic()
        try:
            return self._socket.recv(size)
        finally:
            self.reading = 0.0

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        """Wait for the frame of a step that has this many bytes.

        Raises:
            EngineError: Another frame came, or none; names it.
            ConnectionError: The connection broke; names the frame.
        """
        data = self._read(self._expect(step, size, size), step)
        self._arrived(step, data)
        return data

    def receive_numbers(self, step: int, shape: tuple[int, ...] = (), *, into: Tensor | None = None) -> Tensor:
        """A frame of ring elements: of a shape, or into a contiguous tensor."""
        if into is None:
            size = 8 * int(np.prod(shape, dtype=np.int64))
            return torch.from_numpy(self.receive(step, size).view(np.int64)).view(*shape)
        return self.receive_both(step, 0, into=into)[0]

    def receive_both(self, step: int, more: int, *, into: Tensor) -> tuple[Tensor, NDArray[np.uint8]]:
        """A frame of ring elements, into a contiguous tensor, and more bytes."""
        numbers = into.view(-1).numpy().view(np.uint8)
        self._expect(step, len(numbers) + more, len(numbers) + more)
        self._read_into(numbers, step)
        rest = self._read(more, step) if more else np.empty(0, np.uint8)
        self._arrived(step, numbers, rest)
        return into, rest

    def _arrived(self, step: int, *parts: NDArray[np.uint8]) -> None:
        self._inward += 1
        if self.watch is not None:
            self.watch(False, self.names(step), b"".join(part.tobytes() for part in parts))

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message, which is no payload."""
        self._send(MESSAGE, [memoryview(json.dumps(message).encode())])

    def receive_message(self, longest: int | None = None) -> dict[str, Any]:
        """Wait for a message.

        Args:
            longest: Its size at most; by default that of all messages on this channel.

        Raises:
            EngineError: Something else came.
        """
        data = self._read(self._expect(MESSAGE, 0, longest or self.longest), MESSAGE)
        return self.parse_message(data.tobytes())

    def parse_message(self, data: bytes) -> dict[str, Any]:
        """Read the content of a message whose header was checked."""
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise self._wrong("holds too many values")
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:  # brackets without end
            raise self._wrong("is no message") from error
        if not isinstance(message, dict):
            raise self._wrong("is no message")
        self._inward += 1
        return message

    def failure(self, reason: str, *, later: bool = False) -> bytes:
        """The frame that tells the other party why this one ends; it may come at any time, in place of another."""
        words = reason.encode()[:LONGEST_REASON]
        return HEADER.pack(bytes(16), 0, BUSY if later else FAILURE, len(words)) + words

    @contextmanager
    def reporting_failure(self, otherwise: str) -> Iterator[None]:
        """Tell the other party why this one gives up, or something else where it may not know."""
        try:
            yield
        except PeerError:
            raise
        except EngineError as error:
            with suppress(OSError):  # it has hung up
                self._socket.settimeout(_LAST_SECONDS)
                self._socket.sendall(self.failure(str(error) if isinstance(error, RefusalError) else otherwise))
            raise

    def message_header(self, size: int) -> bytes:
        """The header of a message of so many bytes, which the caller sends next."""
        self._outward += 1
        return HEADER.pack(self.session, self._outward - 1, MESSAGE, size)

    def break_off(self) -> None:
        """End what another thread sends or awaits here. The socket stays: its number must not become another's."""
        with suppress(OSError):  # the peer has hung up
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would wait for its state

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    @property
    def position(self) -> tuple[int, int]:
        """Numbers of the next frames, received and sent: whoever goes on with the connection resumes there."""
        return self._inward, self._outward

    def resume(self, position: tuple[int, int]) -> None:
        """Go on where another channel on this connection was."""
        self._inward, self._outward = position

    def _send(self, step: int, views: list[memoryview]) -> None:
        header = HEADER.pack(self.session, self._outward, step, sum(len(view) for view in views))
        self._outward += 1
        try:
            for part in (memoryview(header), *views):
                self._socket.settimeout(self._seconds(len(part)))
                self._socket.sendall(part)
        except OSError as error:
            lost = self._lost(f"frame {self._outward - 1} to it, {self._what(step)}", error)
            raise self._last_words() or lost from error

    def _last_words(self) -> PeerError | None:
        """The reason of a peer that has hung up, from among what it sent before."""
        data, deadline = b"", time.monotonic() + _LAST_SECONDS
        with suppress(OSError):
            self._socket.setblocking(False)
            while len(data) < _LAST_WORDS and (left := deadline - time.monotonic()) > 0:
                try:
                    more = self.read_ready(1 << 16)
                except _NOT_READY as error:
                    self._wait(left, error)
                    continue
                if not more:
                    break
                data += more
        for kind in (FAILURE, BUSY):
            begin = data.rfind(HEADER.pack(bytes(16), 0, kind, 0)[:_BEFORE_SIZE])
            if begin >= 0:
                return self._ended(kind, data[begin + HEADER.size :])
        return None

    def check_header(self, header: bytes, step: int, least: int, most: int) -> int:
        """The size of the frame that follows a header.

        Raises:
            RefusalError: It is not the frame expected.
            PeerError: The other party has ended.
        """
        session, sequence, found, size = HEADER.unpack(header)
        if found in (FAILURE, BUSY) and session == bytes(16) and size <= LONGEST_REASON:
            raise self._ended(found, self._read(size, step).tobytes())
        if session != self.session:
            raise self._wrong("belongs to another session")
        if sequence != self._inward:
            raise self._wrong(f"says that it is number {sequence}")
        if found != step:
            raise self._wrong(f"is {self._what(found)}, not {self._what(step)}")
        if not least <= size <= most:
            raise self._wrong(f"for {self._what(step)} has {size} bytes, not {most}")
        return int(size)

    def _ended(self, kind: int, words: bytes) -> PeerError:
        text = printable(words.decode(errors="replace"))
        return (PeerBusyError if kind == BUSY else PeerError)(f"the {self.peer} refused: {text}")

    def _expect(self, step: int, least: int, most: int) -> int:
        return self.check_header(self._read(HEADER.size, step, begun=False).tobytes(), step, least, most)

    def _read(self, size: int, step: int, *, begun: bool = True) -> NDArray[np.uint8]:
        """Wait for bytes of a frame; `begun` says whether its header has arrived."""
        data = np.empty(size, np.uint8)
        self._read_into(data, step, begun=begun)
        return data

    def _read_into(self, data: NDArray[np.uint8], step: int, *, begun: bool = True) -> None:
        """Wait for bytes of a frame until an array is full."""
        view, size, done, got = data.data, len(data), 0, 1
        where = f"frame {self._inward} from it, {self._what(step)}"
        # For all of it: a peer that sends a byte now and then would never be silent.
        try:
            deadline = time.monotonic() + self._seconds(size)
            self._socket.setblocking(False)
            while done < size and got:
                self.reading = now = time.monotonic()
                if now >= deadline:
                    raise TimeoutError
                try:
                    got = self._socket.recv_into(view[done:])
                except _NOT_READY as error:
                    self.reading = 0.0
                    self._wait(deadline - now, error)
                else:
                    done += got
            self._socket.settimeout(SILENCE_SECONDS)  # as others use it
        except OSError as error:
            raise self._lost(where, error) from error
        finally:
            self.reading = 0.0
        if done < size:
            lost = self._lost(where, ConnectionError("it hung up"))
            # A peer that has a reason to hang up does so between frames.
            raise RefusalError(f"{lost}: ask again") if begun or done else lost

    def _wait(self, seconds: float, why: OSError) -> None:
        """Wait until the socket is ready, outside of TLS, whose reading is watched."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT if isinstance(why, ssl.SSLWantWriteError) else select.POLLIN)
        poll.poll(1000 * max(0.0, seconds))

    def _seconds(self, size: int) -> float:
        """The longest that so many bytes may take."""
        return (SILENCE_SECONDS if self.silence is None else self.silence) + size / SLOWEST

    def _what(self, step: int) -> str:
        if step == MESSAGE:
            return "a message"
        try:
            return f"step {step} ({self.names(step)})"
        except IndexError:
            return f"step {step}"

    def _wrong(self, what: str) -> RefusalError:
        return RefusalError(f"frame {self._inward} from the {self.peer} {what}: ask again, with the same deepshare")

    def _lost(self, where: str, error: OSError) -> Exception:
        if isinstance(error, TimeoutError):
            return RefusalError(
                f"the {self.peer} was silent for {SILENCE_SECONDS:.0f} s at {where}, or too slow: ask again"
            )
        # No reason of our own: the peer that hung up had one, and says it.
        return ConnectionError(f"the connection to the {self.peer} was lost at {where} ({error.strerror or error})")


class YieldingChannel(Channel):
    """A channel of one of many sessions in a process: it yields its turn to compute while it waits for its peer.

    Args:
        connection: A connected socket.
        peer: The party at the other end.
        turns: One is held while computing.

    Attributes:
        turns: One is held while computing.
        patience: Seconds that it will still wait for the peer, in all.
    """

    def __init__(self, connection: socket.socket, peer: str, turns: threading.Semaphore) -> None:
        super().__init__(connection, peer)
        self.turns, self.longest = turns, LONGEST_REQUEST
        self._since: float | None = None
        self.allow(SILENCE_SECONDS)

    def allow(self, seconds: float) -> None:
        """Begin something anew for which it will wait so long in all."""
        self.patience, self._waited = seconds, 0.0

    @property
    def waited(self) -> float:
        """Seconds that the peer has kept it waiting since then."""
        since = self._since
        return self._waited + (0.0 if since is None else time.monotonic() - since)

    def _send(self, step: int, views: list[memoryview]) -> None:
        with self._waiting():
            super()._send(step, views)

    def _read_into(self, data: NDArray[np.uint8], step: int, *, begun: bool = True) -> None:
        with self._waiting():
            super()._read_into(data, step, begun=begun)

    def _seconds(self, size: int) -> float:
        if self.patience <= 0:
            raise TimeoutError
        return min(super()._seconds(size), self.patience)

    @contextmanager
    def without_turn(self) -> Iterator[None]:
        """Yield the turn meanwhile, to wait for something else than the peer, such as the disk."""
        self.turns.release()
        try:
            yield
        finally:
            self.turns.acquire()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self.without_turn():
            self._since = started = time.monotonic()
            try:
                yield
            finally:
                spent, self._since = time.monotonic() - started, None
                self.patience -= spent
                self._waited += spent


def listen(address: str) -> socket.socket:
    """Listen on host:port.

    Raises:
        EngineError: The port is taken.
    """
    host, port = _split(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise EngineError(f"cannot listen on {address} ({error.strerror}): try again") from error
    listener.settimeout(CONNECT_SECONDS)
    return listener


def accept(listener: socket.socket, peer: str, tls: Tls | None) -> Channel:
    """Wait for a peer to connect.

    Raises:
        EngineError: Nobody came, or someone without a certificate.
    """
    context = None if tls is None else tls.server_context()
    try:
        connection, _ = listener.accept()
        connection.settimeout(CONNECT_SECONDS)
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
    except OSError as error:
        raise EngineError(f"the {peer} did not connect ({error})") from error
    return Channel(connection, peer)


def reach(address: str, peer: str, tls: Tls | None) -> Channel:
    """Connect to host:port.

    Raises:
        OSError: Nobody is there, or there is no trust.
        EngineError: The address is none.
    """
    host, port = _split(address)
    context = None if tls is None else tls.client_context()
    connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=host)
        return Channel(connection, peer)
    except BaseException:
        connection.close()
        raise


def connect(address: str, peer: str, tls: Tls | None) -> Channel:
    """Connect to host:port, and wait until it listens.

    Raises:
        EngineError: Nobody is there, or there is no trust.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return reach(address, peer, tls)
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise EngineError(f"no {peer} at {address}: start it there") from error
            time.sleep(0.02)
        except OSError as error:
            raise EngineError(f"cannot connect to the {peer} at {address} ({error})") from error


def _bytes(part: Tensor | NDArray[Any] | Buffer) -> memoryview:
    if isinstance(part, Tensor):
        part = part.contiguous().numpy()
    if isinstance(part, np.ndarray):
        part = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    return memoryview(part)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 1 << 16):
        raise EngineError(f"{address} is no address: give HOST:PORT, such as 192.0.2.7:8443")
    return host.strip("[]"), int(port)
