"""The port of one session, which accepts the first peer that presents the session token."""

import hmac
import secrets
import socket
import ssl
import threading
from contextlib import suppress
from queue import Empty, Queue

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.transport.channel import CONNECT_SECONDS, listen
from deepshare.private.runtime.engine import Tls

_TOKEN_BYTES = 16
_MOST = 64


class TokenListener:
    """Listens for one client. Every connection is checked in a thread of its own, so that a stranger holds up nobody.

    Args:
        host: Address to listen on.

    Attributes:
        address: Where it listens.
        token: The client presents it first, inside TLS.
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self._listener = listen(f"{host}:0")
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._held, self._open, self._lock = {self._listener: None}, True, threading.Lock()
        self._found: Queue[socket.socket | None] = Queue()

    def admit(self, tls: Tls | None) -> socket.socket:
        """Wait for the client.

        Raises:
            EngineError: It did not come, or `cut` was called.
        """
        context = None if tls is None else tls.server_context()
        threading.Thread(target=self._listen, args=(context,), daemon=True).start()
        with suppress(Empty):
            found = self._found.get(timeout=CONNECT_SECONDS)
            if found is not None:
                self._end(found)
                return found
        raise EngineError(f"the client did not come to {self.address}: the server's ports must be open to it")

    def cut(self) -> None:
        """Wake every thread that waits for a socket, with an error; closing sockets alone would not."""
        self._end(None)

    def close(self) -> None:
        """Hang up."""
        self.cut()
        with self._lock:
            for one in self._held:
                one.close()

    def _end(self, spared: socket.socket | None) -> None:
        with self._lock:
            self._open = False
            for one in self._held:
                if one is not spared:
                    _hang_up(one)

    def _listen(self, context: ssl.SSLContext | None) -> None:
        with suppress(OSError):
            while True:
                guest = self._listener.accept()[0]
                threading.Thread(target=self._look_at, args=(guest, context), daemon=True).start()
        self._found.put(None)

    def _look_at(self, guest: socket.socket, context: ssl.SSLContext | None) -> None:
        with suppress(OSError, ValueError):  # no certificate, gone, or closed here
            guest.settimeout(CONNECT_SECONDS)
            if context is not None:
                guest = context.wrap_socket(guest, server_side=True, do_handshake_on_connect=False)
            self._hold(guest)
            if isinstance(guest, ssl.SSLSocket):
                guest.do_handshake()
            if hmac.compare_digest(_exactly(guest, _TOKEN_BYTES), self.token):
                self._found.put(guest)
                return
        with self._lock:
            self._held.pop(guest, None)
        guest.close()

    def _hold(self, guest: socket.socket) -> None:
        """Keep a connection, so that it can be cut; one that comes too late is, and of too many the first one."""
        with self._lock:
            if not self._open:
                raise ConnectionAbortedError
            self._held[guest] = None
            if len(self._held) > _MOST:
                oldest = list(self._held)[1]  # after the listener; sending new ones away would keep the client out
                del self._held[oldest]
                _hang_up(oldest)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(one, socket.SHUT_RDWR)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data
