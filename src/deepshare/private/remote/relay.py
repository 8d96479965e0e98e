"""A client's connection handed on to a process of the server: bytes go both ways until either end hangs up.

A process of its own reads what a stranger's ciphertexts do to a library, so that the server survives it. TLS ends here,
since its state cannot move to another process; the two talk through a socket that nobody else sees.
"""

import select
import socket
import ssl

_CHUNK = 1 << 18
_MOST = 1 << 22  # bytes on their way in one direction
_NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def relay(client: socket.socket, process: socket.socket) -> None:
    """Relay between two sockets, in this thread alone, until one hangs up and all that it sent has arrived."""
    for one in (client, process):
        one.setblocking(False)
    waiting = {client: bytearray(), process: bytearray()}
    other = {client: process, process: client}
    ended: set[socket.socket] = set()
    while not any(one in ended and not waiting[other[one]] for one in waiting):
        moved = False
        for one, peer in other.items():
            moved |= _read(one, waiting[peer], ended)
            moved |= _write(peer, waiting[peer], ended)
        if not moved:
            readers = [one for one in waiting if one not in ended and len(waiting[other[one]]) < _MOST]
            select.select(readers, [one for one, data in waiting.items() if data and one not in ended], [], 60.0)


def _read(source: socket.socket, data: bytearray, ended: set[socket.socket]) -> bool:
    if source in ended or len(data) >= _MOST:
        return False
    try:
        got = source.recv(_CHUNK)
    except _NOT_READY:
        return False
    except OSError:
        got = b""
    if not got:
        ended.add(source)
    data += got
    return True


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
