"""Channels: frames between two parties, each with a header that names it; unexpected frames are refused.

Everything about a frame but its content is known beforehand. A wrong one is refused by its header, before anything is
read or allocated for it. Hence plain sockets, with TLS where there are certificates: websockets reads a message before
it can be inspected, and takes about four times the CPU, a tenth of an inference (benchmarks/transport.py).
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Role, Tls

# Session, number of the frame in its direction, step, bytes that follow.
HEADER = struct.Struct("<16sIIQ")
MESSAGE = 0xFFFFFFFF
LONGEST_MESSAGE = 1 << 20
CONNECT_SECONDS = 60.0
# The longest that a peer may stay silent, and the fewest bytes a second that it sends after that.
SILENCE_SECONDS = 300.0
SLOWEST = 1 << 16

Buffer = bytes | bytearray | memoryview


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
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer, self.sent, self.session = peer, 0, bytes(16)
        self.names: Callable[[int], str] = str
        self._socket = connection
        self._outward = self._inward = 0
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, step: int, *parts: Tensor | NDArray[Any] | Buffer) -> None:
        """Send one frame of payload."""
        views = [_bytes(part) for part in parts]
        self.sent += sum(len(view) for view in views)
        self._send(step, views)

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        """Wait for the frame of a step that has this many bytes.

        Raises:
            EngineError: Another frame came, or none; names it.
            ConnectionError: The connection broke; names the frame.
        """
        data = self._read(self._expect(step, size, size), step)
        self._inward += 1
        return data

    def receive_numbers(self, step: int, shape: tuple[int, ...]) -> Tensor:
        """A frame of ring elements."""
        return self.receive_both(step, shape, 0)[0]

    def receive_both(self, step: int, shape: tuple[int, ...], more: int) -> tuple[Tensor, NDArray[np.uint8]]:
        """A frame of ring elements and more bytes."""
        size = 8 * int(np.prod(shape, dtype=np.int64))
        data = self.receive(step, size + more)
        return torch.from_numpy(data[:size].view(np.int64)).view(*shape), data[size:]

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message, which is no payload."""
        self._send(MESSAGE, [memoryview(json.dumps(message).encode())])

    def receive_message(self) -> dict[str, Any]:
        """Wait for a message.

        Raises:
            EngineError: Something else came.
        """
        data = self._read(self._expect(MESSAGE, 0, LONGEST_MESSAGE), MESSAGE)
        try:
            message = json.loads(data.tobytes())
        except (ValueError, RecursionError) as error:  # brackets without end
            raise self._wrong(f"is no message ({error})") from error
        if not isinstance(message, dict):
            raise self._wrong("is no message")
        self._inward += 1
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _send(self, step: int, views: list[memoryview]) -> None:
        header = HEADER.pack(self.session, self._outward, step, sum(len(view) for view in views))
        self._outward += 1
        try:
            for part in (memoryview(header), *views):
                self._socket.settimeout(SILENCE_SECONDS + len(part) / SLOWEST)
                self._socket.sendall(part)
        except OSError as error:
            raise self._lost(f"frame {self._outward - 1} to it, {self._what(step)}", error) from error

    def _expect(self, step: int, least: int, most: int) -> int:
        return self._checked(self._read(HEADER.size, step, begun=False).tobytes(), step, least, most)

    def _checked(self, header: bytes, step: int, least: int, most: int) -> int:
        """The size that a header gives, if it is that of the next frame."""
        session, sequence, found, size = HEADER.unpack(header)
        if session != self.session:
            raise self._wrong("belongs to another session")
        if sequence != self._inward:
            raise self._wrong(f"says that it is number {sequence}")
        if found != step:
            raise self._wrong(f"is {self._what(found)}, not {self._what(step)}")
        if not least <= size <= most:
            raise self._wrong(f"for {self._what(step)} has {size} bytes, not {most}")
        return int(size)

    def _read(self, size: int, step: int, *, begun: bool = True) -> NDArray[np.uint8]:
        """Wait for bytes of a frame; `begun` says whether its header has arrived."""
        data = np.empty(size, np.uint8)
        view, done, got = data.data, 0, 1
        where = f"frame {self._inward} from it, {self._what(step)}"
        # For all of it: a peer that sends a byte now and then would never be silent.
        deadline = time.monotonic() + SILENCE_SECONDS + size / SLOWEST
        try:
            while done < size and got:
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                got = self._socket.recv_into(view[done:])
                done += got
        except OSError as error:
            raise self._lost(where, error) from error
        if done < size:
            lost = self._lost(where, ConnectionError("it hung up"))
            # A peer that has a reason to hang up does so between frames.
            raise EngineError(f"{lost}: ask again") if begun or done else lost
        return data

    def _what(self, step: int) -> str:
        if step == MESSAGE:
            return "a message"
        try:
            return f"step {step} ({self.names(step)})"
        except IndexError:
            return f"step {step}"

    def _wrong(self, what: str) -> EngineError:
        return EngineError(f"frame {self._inward} from the {self.peer} {what}: ask again, with the same deepshare")

    def _lost(self, where: str, error: OSError) -> Exception:
        if isinstance(error, TimeoutError):
            return EngineError(
                f"the {self.peer} was silent for {SILENCE_SECONDS:.0f} s at {where}, or too slow: ask again"
            )
        # No reason of our own: the peer that hung up had one, and says it.
        return ConnectionError(f"the connection to the {self.peer} was lost at {where} ({error.strerror or error})")


class YieldingChannel(Channel):
    """A channel of one of many sessions in a process: it yields its turn to compute while it waits for its peer.

    Attributes:
        turn: Held while computing.
    """

    def __init__(self, connection: socket.socket, peer: str, turn: "threading.Semaphore") -> None:
        super().__init__(connection, peer)
        self.turn = turn

    def _send(self, step: int, views: list[memoryview]) -> None:
        with self._waiting():
            super()._send(step, views)

    def _read(self, size: int, step: int, *, begun: bool = True) -> NDArray[np.uint8]:
        with self._waiting():
            return super()._read(size, step, begun=begun)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()


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


def connect(address: str, peer: Role, tls: Tls | None, token: bytes = b"") -> Channel:
    """Connect to host:port, wait until it listens, and present a token if it takes one.

    Raises:
        EngineError: Nobody is there, or there is no trust.
    """
    host, port = _split(address)
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
            if tls is not None:
                connection = tls.client_context().wrap_socket(connection, server_hostname=host)
            connection.sendall(token)
            return Channel(connection, peer)
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
    return host.strip("[]"), int(port)
