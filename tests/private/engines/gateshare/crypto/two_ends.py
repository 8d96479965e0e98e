"""The two parties of a protocol in threads, at the ends of a real socket."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepshare.private.transport.channel import Channel

Payload = NDArray[np.uint8]


class Tampered(Channel):
    """A channel that notes its payloads and changes them on the way out.

    Attributes:
        change: Gets the number of a payload and the payload.
        frames: All payloads as they were sent.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        super().__init__(connection, peer)
        self.change: Callable[[int, Payload], Payload] = lambda _, payload: payload
        self.frames: list[Payload] = []

    def send(self, step: int, *parts: Any) -> None:
        whole = b"".join(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes() for part in parts)
        payload = self.change(len(self.frames), np.frombuffer(whole, np.uint8).copy())
        self.frames.append(payload)
        super().send(step, payload)


@dataclass
class Ends:
    """What became of the sender (0) and the receiver (1)."""

    results: list[Any] = field(default_factory=lambda: [None, None])
    errors: list[Exception | None] = field(default_factory=lambda: [None, None])
    sent: list[int] = field(default_factory=lambda: [0, 0])
    frames: list[list[Payload]] = field(default_factory=lambda: [[], []])

    @property
    def lines(self) -> list[str]:
        return [str(error) for error in self.errors]


Work = Callable[[Channel], Any]


def at_both_ends(
    sender: Work, receiver: Work, changes: tuple[Callable[[int, Payload], Payload] | None, ...] = (None, None)
) -> Ends:
    """Run both; whoever fails or is done hangs up. Neither may hang."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = [socket.create_connection(listener.getsockname()), listener.accept()[0]]
    listener.close()
    channels = [Tampered(end, peer) for end, peer in zip(sockets, ("receiver", "sender"), strict=True)]
    ends = Ends()

    def run(party: int, work: Work) -> None:
        try:
            ends.results[party] = work(channels[party])
        except Exception as error:
            ends.errors[party] = error
        finally:
            channels[party].close()

    for channel, change in zip(channels, changes, strict=True):
        channel.change = change or channel.change
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate((sender, receiver))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a party hangs"
    ends.sent, ends.frames = [channel.sent for channel in channels], [channel.frames for channel in channels]
    return ends


def well(ends: Ends) -> Ends:
    """Both, without an error."""
    for error in ends.errors:
        if error is not None:
            raise error
    return ends
