"""Whatever is done to frames and messages on the way: each is read as it is, or refused by name, and nothing hangs."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.transport.channel import HEADER, LONGEST_MESSAGE, MESSAGE, Channel

SLOW = [HealthCheck.too_slow]  # so may a busy machine be
SESSION = bytes(range(16))


TAKE = {"take": [["00" * 16, [0, 2]], ["ff" * 16, [1]]]}


# What a party expects, one after the other: the step and the payload, or a message.
TALK: list[tuple[int, bytes]] = [
    (3, bytes(range(24))),
    (MESSAGE, json.dumps(TAKE).encode()),
    (3, b"\xff" * 9),
    (MESSAGE, b'{"go": 1}'),
    (7, b""),
    (0, bytes(64)),
]
FRAMES = [HEADER.pack(SESSION, n, step, len(data)) + data for n, (step, data) in enumerate(TALK)]


class Sized(Channel):
    """A channel that keeps how many bytes it makes room for."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "client")
        self.session, self.room = SESSION, list[int]()

    def _read_into(self, data: NDArray[np.uint8], step: int, *, begun: bool = True) -> None:
        self.room.append(len(data))
        super()._read_into(data, step, begun=begun)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """All frames, with one or two things done to them."""
    frames = list(FRAMES)
    place = st.integers(0, len(frames) - 1)
    if draw(st.booleans()):
        first, second = draw(place), draw(place)
        match draw(st.sampled_from(["repeat", "swap", "drop"])):
            case "repeat":
                frames.insert(second, frames[first])
            case "swap":
                frames[first], frames[second] = frames[second], frames[first]
            case "drop":
                del frames[first]
    begin = sum(map(len, frames[: draw(place)]))
    wire = b"".join(frames)
    # Headers are where most is to be found.
    at = min(begin + draw(st.integers(0, HEADER.size + 10)), len(wire) - 1)
    match draw(st.sampled_from(["keep", "flip", "cut", "extend", "lose", "write"])):
        case "flip":
            wire = wire[:at] + bytes([wire[at] ^ 1 << draw(st.integers(0, 7))]) + wire[at + 1 :]
        case "cut":
            wire = wire[:at]
        case "extend":
            wire = wire[:at] + draw(st.binary(min_size=1, max_size=40)) + wire[at:]
        case "lose":
            wire = wire[:at] + wire[at + draw(st.integers(1, 40)) :]
        case "write":
            some = draw(st.binary(min_size=1, max_size=HEADER.size))
            wire = wire[:at] + some + wire[at + len(some) :]
    return wire


@contextmanager
def receiving(wire: bytes) -> Iterator[Sized]:
    """A party to which this is sent, and no more."""
    left, right = socket.socketpair()
    channel = Sized(left)
    right.sendall(wire)
    right.close()
    yield channel
    channel.close()


def is_message(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def outcome(channel: Channel, step: int, size: int) -> tuple[Any, Exception | None]:
    """What comes, or why nothing does."""
    try:
        return (channel.receive_message() if step == MESSAGE else channel.receive(step, size).tobytes()), None
    except (EngineError, ConnectionError) as error:
        return None, error


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(damaged())
def test_damaged_frames_are_read_as_they_are_or_refused_by_name(wire: bytes) -> None:
    with receiving(wire) as channel:
        begin = 0
        for number, (step, data) in enumerate(TALK):
            head, rest = wire[begin : begin + HEADER.size], wire[begin + HEADER.size :]
            size = len(data)
            if step == MESSAGE and len(head) == HEADER.size:
                size = HEADER.unpack(head)[3]
            sound = head == HEADER.pack(SESSION, number, step, size) and len(rest) >= size
            sound &= step != MESSAGE or is_message(rest[:size])
            found, error = outcome(channel, step, size)
            if not sound:
                assert f"frame {number} from" in str(error)
                break
            assert found == (json.loads(rest[:size]) if step == MESSAGE else rest[:size])
            begin += HEADER.size + size
        assert max(channel.room) <= LONGEST_MESSAGE


@settings(deadline=None, suppress_health_check=SLOW)
@given(st.integers(0, 2**64 - 1), st.booleans())
def test_no_room_is_made_for_more_than_was_agreed(size: int, message: bool) -> None:
    with receiving(HEADER.pack(SESSION, 0, MESSAGE if message else 3, size)) as channel:
        with pytest.raises((EngineError, ConnectionError), match="frame 0 from"):
            channel.receive_message() if message else channel.receive(3, 24)
        assert max(channel.room) <= (LONGEST_MESSAGE if message else HEADER.size)


@settings(deadline=None, suppress_health_check=SLOW)
@given(st.binary(max_size=60) | st.text('{}[]":,0123456789.eE-+truefalsn\\u ').map(str.encode))
def test_any_content_is_a_message_or_is_refused(data: bytes) -> None:
    with receiving(HEADER.pack(SESSION, 0, MESSAGE, len(data)) + data) as channel:
        found, error = outcome(channel, MESSAGE, 0)
        assert found == json.loads(data) if is_message(data) else isinstance(error, EngineError)
