"""A guest of a front door: one connection, its certificate, and its messages as far as they have come."""

import hashlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from deepshare.private.transport.channel import (
    BUSY,
    FAILURE,
    HEADER,
    LONGEST_REQUEST,
    MESSAGE,
    Channel,
    PeerError,
    YieldingChannel,
)

Stage = Literal["handshake", "listening", "replying", "parked", "working", "lingering"]


@dataclass(eq=False)
class Guest:
    """A connection.

    Attributes:
        channel: Its channel.
        address: Its address, HOST:PORT.
        identity: Fingerprint of its certificate; its host where there is no TLS.
        name: The name in its certificate; "" where there is no TLS.
        state: Whatever its server keeps for it.
        stage: What the door waits for.
        deadline: When it is sent away, unless something happens.
    """

    channel: Channel
    address: str
    identity: str
    name: str = ""
    state: Any = None
    stage: Stage = "handshake"
    deadline: float = 0.0
    since: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    replies: list[memoryview] = field(default_factory=list)
    resume: Callable[[], None] | None = None

    @property
    def host(self) -> str:
        """The host of its address."""
        return self.address.rpartition(":")[0]

    @property
    def socket(self) -> socket.socket:
        """Its socket."""
        return self.channel.connection

    @property
    def waited(self) -> float:
        """Seconds that it has kept a thread waiting, with an engine that counts them."""
        return self.channel.waited if isinstance(self.channel, YieldingChannel) else 0.0

    @property
    def who(self) -> str:
        """Address and name, for logs."""
        return f"{self.address} ({self.name})" if self.name else self.address

    def show_certificate(self) -> None:
        """Go on with the handshake of TLS, without blocking; at its end identity and name are known."""
        connection = self.socket
        if not isinstance(connection, ssl.SSLSocket):
            raise AssertionError("no TLS")
        connection.do_handshake()
        self.identity = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
        self.name = _common_name(connection.getpeercert()) or self.identity[:12]

    def read_message(self) -> dict[str, Any] | None:
        """Read a message as far as it has come; more than the message is never read.

        Returns:
            The message; None if the guest has hung up where it may, between two.

        Raises:
            BlockingIOError: It is not whole yet; or one of TLS's own errors of that kind.
            PeerError: The guest says that it has ended.
            ConnectionError: It hung up.
        """
        data = self.received
        while True:
            wanted = HEADER.size
            if len(data) >= HEADER.size:
                header = bytes(data[: HEADER.size])
                if HEADER.unpack(header)[2] in (FAILURE, BUSY):
                    raise PeerError("it has ended")
                wanted += self.channel.check_header(header, MESSAGE, 0, LONGEST_REQUEST)
            if len(data) == wanted > HEADER.size:
                break
            more = self.channel.read_ready(wanted - len(data))
            if not more and self.state is not None and not data:  # it has all that it wanted
                return None
            if not more:
                raise ConnectionError("it hung up")
            data += more
        message = self.channel.parse_message(bytes(data[HEADER.size :]))
        data.clear()
        return message

    def has_hung_up(self) -> bool:
        """Whether it has hung up, and all that it sent was read."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return False
        try:
            return not socket.socket.recv(self.socket, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def send_replies(self) -> None:
        """Send what waits for it, without blocking."""
        while self.replies:
            self.replies[0] = self.replies[0][self.socket.send(self.replies[0]) :]
            if not self.replies[0]:
                del self.replies[0]


@dataclass(frozen=True)
class Reply:
    """An answer to a message.

    Attributes:
        parts: A whole frame, in parts.
        seconds: How long the guest has for its next message.
    """

    parts: tuple[bytes, ...]
    seconds: float


@dataclass(frozen=True)
class Work:
    """Work for a guest, which a thread of its own does with blocking calls."""

    run: Callable[[], None]


def _common_name(certificate: Any) -> str:
    """The name in a certificate."""
    parts = (certificate or {}).get("subject", ())
    return next((str(value) for part in parts for key, value in part if key == "commonName"), "")
