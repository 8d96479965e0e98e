"""Duplex: named messages in both directions at once over a channel's connection, for libraries with their own threads.

Frames of a channel follow one another, and each party knows which is next. Homomorphic encryption sends when it likes,
in several threads, messages whose size follows from what they hold. One thread owns the connection meanwhile (TLS has
room for no two), reads and writes whatever is ready, and gives it back once both parties have said that they are done.

A message is a frame: two bytes for the length of its name, the name, the content. An empty frame is the end.
"""

import select
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.transport.channel import HEADER, Channel, RefusalError

# How long a party waits for a message: the other may compute for minutes before it answers.
MESSAGE_SECONDS = 1200.0
LARGEST = 1 << 28
"""Bytes of a message, and of all messages that nobody has asked for yet."""
LONGEST_NAME, FRAME_BYTES = 256, 1024
"""Bytes of a message's name, and those that each message counts for beside its content: empty ones take room too."""

_NAME = struct.Struct("<H")
_CHUNK = 1 << 18
_FRAMES = "frames"
_NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Duplex:
    """Messages by name, within `with` blocks of both parties; the channel is not to be used there.

    Args:
        channel: The channel; its payload counter goes on.
        step: The number of the frames.
    """

    def __init__(self, channel: Channel, step: int) -> None:
        self._channel, self._step, self._socket = channel, step, channel._socket
        self._outgoing: deque[memoryview] = deque()
        self._inbox: dict[str, deque[bytes]] = defaultdict(deque)
        self._waiting = 0
        self._begun, self._wanted, self._in_header = bytearray(), HEADER.size, True
        self._changed = threading.Condition()
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        """Take the connection."""
        self._ended_here = self._ended_there = False
        self._names, self._channel.names = self._channel.names, lambda step: "preprocessing"
        self._bell, self._ring = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Give the connection back once the peer has ended too; after an error it is good for nothing any more.

        Raises:
            EngineError: The peer sent something else.
            ConnectionError: The connection broke.
        """
        if error is not None:
            self._fail(ConnectionError("this party gave up"))
        else:
            self._put(b"", b"", last=True)
        self._thread.join()
        self._bell.close()
        self._ring.close()
        self._channel.names = self._names
        if error is None and self.error is not None:
            raise self.error
        if error is None and any(self._inbox.values()):
            raise RefusalError(f"the {self._channel.peer} sent more than was asked for: start both parties again")

    def put(self, name: str, content: bytes) -> None:
        """Send a message, without waiting.

        Raises:
            EngineError: The peer sent something else before.
            ConnectionError: The connection broke.
        """
        label = name.encode()
        self._put(_NAME.pack(len(label)) + label, content)

    def get(self, name: str) -> bytes:
        """Wait for the next message of this name.

        Raises:
            EngineError: The peer sent something else, or nothing.
            ConnectionError: The connection broke.
        """
        peer, deadline = self._channel.peer, time.monotonic() + MESSAGE_SECONDS
        with self._changed:
            while not self._inbox[name]:
                if self.error is not None:
                    raise self.error
                if self._ended_there:
                    raise RefusalError(f"the {peer} ended before all was made: start both parties again")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise RefusalError(f"the {peer} was silent for {MESSAGE_SECONDS:.0f} s: start both parties again")
            content = self._inbox[name].popleft()
            self._waiting -= len(content) + FRAME_BYTES
            return content

    def send(self, step: int, *parts: NDArray[Any] | bytes) -> None:
        """Send one frame, as a channel does."""
        self.put(
            _FRAMES,
            b"".join(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else part for part in parts),
        )

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        """Wait for a frame of this size, as a channel does."""
        content = self.get(_FRAMES)
        if len(content) != size:
            peer = self._channel.peer
            raise RefusalError(
                f"a frame from the {peer} has {len(content)} bytes, not {size}: start both parties again"
            )
        return np.frombuffer(bytearray(content), np.uint8)

    def _put(self, label: bytes, content: bytes, *, last: bool = False) -> None:
        channel, size = self._channel, len(label) + len(content)
        with self._changed:
            if self.error is not None:
                raise self.error
            header = HEADER.pack(channel.session, channel._outward, self._step, size)
            channel._outward += 1
            channel.sent += size
            self._outgoing.extend(memoryview(part) for part in (header + label, content) if part)
            self._ended_here = last
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._ring.send(b"x")

    def _run(self) -> None:
        self._socket.setblocking(False)
        try:
            while not self._done():
                if not self._read() | self._write():
                    self._wait()
            self._socket.setblocking(True)
        except Exception as error:
            self._fail(self._named(error))

    def _done(self) -> bool:
        with self._changed:
            if self.error is not None:
                raise self.error
            return self._ended_here and self._ended_there and not self._outgoing

    def _wait(self) -> None:
        """Wait until something can be read, or written, or is there to be written."""
        poll = select.poll()  # not select, which takes no descriptor beyond 1,023
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        poll.register(self._bell, select.POLLIN)
        if self._bell.fileno() in dict(poll.poll()):
            self._bell.recv(1 << 12)

    def _write(self) -> bool:
        with self._changed:
            if not self._outgoing:
                return False
            part = self._outgoing[0]
        try:
            sent = self._socket.send(part[:_CHUNK])
        except _NOT_READY:
            return False
        with self._changed:
            if sent == len(part):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = part[sent:]
        return True

    def _read(self) -> bool:
        if self._ended_there:
            return False
        try:
            data = self._socket.recv(min(_CHUNK, self._wanted - len(self._begun)))
        except _NOT_READY:
            return False
        if not data:
            raise ConnectionError("it hung up")
        self._begun += data
        if len(self._begun) == self._wanted:
            whole, self._begun = bytes(self._begun), bytearray()
            take = self._take_header if self._in_header else self._take_message
            take(whole)
        return True

    def _take_header(self, header: bytes) -> None:
        size = self._channel.check_header(header, self._step, 0, LARGEST)
        with self._changed:
            self._channel._inward += 1
            if size:
                self._wanted, self._in_header = size, False
            else:
                self._ended_there = True
            self._changed.notify_all()

    def _take_message(self, message: bytes) -> None:
        peer = self._channel.peer
        begin = _NAME.size + (_NAME.unpack_from(message)[0] if len(message) >= _NAME.size else LARGEST)
        if begin > len(message) or begin > LONGEST_NAME:
            raise RefusalError(f"a message from the {peer} has no name: start both parties again")
        self._wanted, self._in_header = HEADER.size, True
        with self._changed:
            self._waiting += len(message) - begin + FRAME_BYTES
            if self._waiting > LARGEST:
                raise RefusalError(f"the {peer} sends more than anybody asks for: start both parties again")
            self._inbox[message[_NAME.size : begin].decode(errors="replace")].append(message[begin:])
            self._changed.notify_all()

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, EngineError):
            return error
        return ConnectionError(f"the connection to the {self._channel.peer} was lost during preprocessing ({error})")

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        self._wake()
