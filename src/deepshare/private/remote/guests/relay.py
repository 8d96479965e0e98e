"""A client's connection handed on to a process of the server: bytes go both ways until either end hangs up.

A process of its own reads what a stranger's ciphertexts do to a library, so that the server survives it. TLS ends here,
since its state cannot move to another process; the two talk through a socket that nobody else sees.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable

from deepshare.private.transport.channel import HEADER

_CHUNK = 1 << 18
_MOST = 1 << 22  # bytes on their way in one direction
_LOOK_SECONDS = 0.5
# For the rest of a frame that is on its way when a client's time is over.
_REST_SECONDS = 3.0
_NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Frames:
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


def relay(client: socket.socket, process: socket.socket, over: Callable[[float], bool]) -> bool:
    """Relay between two sockets, in this thread alone, until one hangs up and all that it sent has arrived.

    Args:
        client: The client's connection.
        process: That of the process.
        over: Called now and then with the seconds since the client sent something: whether its time is over.

    Returns:
        Whether the client's time was over; then it has whole frames, and a reason may follow.
    """
    for one in (client, process):
        one.setblocking(False)
    waiting = {client: bytearray(), process: bytearray()}
    other = {client: process, process: client}
    ended: set[socket.socket] = set()
    frames, heard, end = _Frames(), time.monotonic(), 0.0
    while not any(one in ended and not waiting[other[one]] for one in waiting):
        if not end and over(time.monotonic() - heard):
            end = time.monotonic() + _REST_SECONDS
        if end and ((not frames.left and not waiting[client]) or time.monotonic() > end):
            return True
        moved, hung_up = False, len(ended)
        for one, peer in other.items():
            most = frames.left if end and one is process else _CHUNK
            got = _read(one, waiting[peer], ended, most)
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
    poll.poll(1000 * _LOOK_SECONDS)


def _read(source: socket.socket, data: bytearray, ended: set[socket.socket], most: int) -> bytes:
    if source in ended or len(data) >= _MOST or not most:
        return b""
    try:
        got = source.recv(min(most, _CHUNK))
    except _NOT_READY:
        return b""
    except OSError:
        got = b""
    if not got:
        ended.add(source)
    data += got
    return got


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
