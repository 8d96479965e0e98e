"""The control channel of two parties on two machines, beside the engine's own connection.

On it they agree on an inference, as JSON messages, and tell each other how it ends:

    client: {"protocol"}                       server: {"protocol", "engine", "options", "outline", "about"}
    client: {"images", "address", "outline"}   server: {"start", "token"}
    both:   {"layers", "offline", "session", "seconds"}, or the kind of an end with its reason
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.party import FAILURES

PROTOCOL = 2
# A peer that vanishes without a word is missed within the sum of both.
PING_SECONDS = 5.0
PONG_SECONDS = 10.0
# For both handshakes, also between busy machines.
OPEN_SECONDS = 60.0
LARGEST_MESSAGE = 2**26
ANSWER_SECONDS = 60.0

SETTINGS: dict[str, Any] = {
    "open_timeout": OPEN_SECONDS,
    "compression": None,
    "ping_interval": PING_SECONDS,
    "ping_timeout": PONG_SECONDS,
    "close_timeout": 2.0,
    "max_size": LARGEST_MESSAGE,
}

Message = dict[str, Any]


class PeerError(EngineError):
    """The other party has ended, and said so itself, or is not connected any more.

    Attributes:
        kind: One of `FAILURES`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


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
            PeerError: The connection is lost.
        """
        try:
            self._connection.send(json.dumps(message))
        except (ConnectionClosed, OSError) as error:
            raise self._lost() from error

    def receive(self, timeout: float | None = ANSWER_SECONDS) -> Message:
        """Wait for a message.

        Raises:
            PeerError: The other party says that it has ended, or is gone.
            EngineError: It does not answer, or speaks something else.
        """
        message = self._message(timeout)
        for kind in FAILURES:
            if kind in message:
                verb = "failed" if kind in ("failed", "lost") else "refused"
                raise PeerError(kind, f"the {self.peer} {verb}: {message[kind]}")
        return message

    def end(self, kind: str, reason: str) -> None:
        """Tell the other party why this one ends, if it still listens."""
        with suppress(EngineError):
            self.send({kind: reason})

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

    def _lost(self) -> PeerError:
        cure = ": ask again; what was dealt for these images may be spent" if self.peer == "server" else ""
        return PeerError("gone", f"the connection to the {self.peer} was lost{cure}")
