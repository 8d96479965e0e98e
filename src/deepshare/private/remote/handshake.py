"""The channel on which two parties agree on an inference and tell each other how it goes, beside the engine's own."""

import json
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import Queue
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Role, Tls
from deepshare.private.runtime.subprocess_party import Event

PROTOCOL = 2
# A peer that vanishes without a word is missed within the sum of both.
PING_SECONDS = 5.0
PONG_SECONDS = 10.0
# For both handshakes, also between busy machines.
OPEN_SECONDS = 60.0
LARGEST_MESSAGE = 2**26
ANSWER_SECONDS = 60.0
# How a party says that it has ended before it was done, and why.
ENDS = ("refused", "failed", "lost", "gone")

SETTINGS: dict[str, Any] = {
    "open_timeout": OPEN_SECONDS,
    "compression": None,
    "ping_interval": PING_SECONDS,
    "ping_timeout": PONG_SECONDS,
    "close_timeout": 2.0,
    "max_size": LARGEST_MESSAGE,
}

Message = dict[str, Any]


class GoneError(EngineError):
    """The other party is not connected any more."""


class Control:
    """Messages to and from the other party, each a JSON object."""

    def __init__(self, connection: Connection, peer: Role) -> None:
        self._connection = connection
        self.peer = peer

    @property
    def local_host(self) -> str:
        """The address of this machine that the other party can reach."""
        return str(self._connection.local_address[0])

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            EngineError: The connection is lost.
        """
        try:
            self._connection.send(json.dumps(message))
        except (ConnectionClosed, OSError) as error:
            raise self._lost() from error

    def receive(self, timeout: float | None = ANSWER_SECONDS) -> Message:
        """Wait for a message; one that says that the other party has ended is raised with its reason.

        Raises:
            EngineError: The other party says so, is gone, does not answer or speaks something else.
        """
        message = self._message(timeout)
        for kind in ENDS:
            if kind in message:
                raise EngineError(self._ended(kind, message))
        return message

    def end(self, kind: str, reason: str) -> None:
        """Tell the other party why it ends here, if it still listens."""
        with suppress(EngineError):
            self.send({kind: reason})

    def forward(self, events: "Queue[Event]") -> None:
        """From now on put what the other party says among the events of this one."""
        threading.Thread(target=self._forward, args=(events,), daemon=True).start()

    def _forward(self, events: "Queue[Event]") -> None:
        try:
            message = self._message(None)
        except EngineError as error:
            events.put((self.peer, "gone" if isinstance(error, GoneError) else "refused", str(error)))
            return
        kind = next((kind for kind in ENDS if kind in message), "done")
        events.put((self.peer, kind, message if kind == "done" else self._ended(kind, message)))

    def _message(self, timeout: float | None) -> Message:
        try:
            message = json.loads(self._connection.recv(timeout))
        except TimeoutError:
            raise EngineError(f"the {self.peer} did not answer within {timeout:.0f} s") from None
        except (ConnectionClosed, OSError) as error:
            raise self._lost() from error
        except (ValueError, RecursionError) as error:  # brackets without end
            raise EngineError(f"the {self.peer} does not speak the language of deepshare private") from error
        if not isinstance(message, dict):
            raise EngineError(f"the {self.peer} does not speak the language of deepshare private")
        return message

    def _ended(self, kind: str, message: Message) -> str:
        return f"the {self.peer} {'failed' if kind in ('failed', 'lost') else 'refused'}: {message[kind]}"

    def _lost(self) -> GoneError:
        cure = ": ask again; what was dealt for these images may be spent" if self.peer == "server" else ""
        return GoneError(f"the connection to the {self.peer} was lost{cure}")


def server_context(tls: Tls) -> ssl.SSLContext:
    """TLS that asks the client for a certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # A ticket arrives after the handshake: while the client's other thread writes, the two may wait for each other, and
    # closing a connection on which nobody has read it cuts what was sent before.
    context.num_tickets = 0
    return _loaded(context, tls)


def client_context(tls: Tls) -> ssl.SSLContext:
    """TLS that checks the server's certificate and name, and shows its own."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def _loaded(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(tls.authority)
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        folder = tls.certificate.parent
        raise EngineError(
            f"{folder}: its certificates cannot be used ({error}): make a set with private keys"
        ) from error
    return context
