"""Frames: what was not expected ends an inference with an error that names it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport import channel as channels
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel, accept, connect, listen
from deepshare.private.transport.tls import tls_of

SESSION = bytes(range(16))
Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel, and the bare socket at its other end."""
    left, right = socket.socketpair()
    channel = Channel(left, "client")
    channel.session, channel.names = SESSION, ["input", "conv1", "act1"].__getitem__
    yield channel, right
    channel.close()
    right.close()


def frame(step: int, payload: bytes, sequence: int = 0, session: bytes = SESSION, size: int | None = None) -> bytes:
    return HEADER.pack(session, sequence, step, len(payload) if size is None else size) + payload


def test_payload_arrives_and_is_counted(pair: Pair) -> None:
    ours, other = pair
    theirs = Channel(other, "server")
    theirs.session = SESSION
    numbers, bits = torch.tensor([[1, -2, 1 << 62]]), np.array([7, 9], np.uint8)
    theirs.send(2, numbers, bits)
    theirs.send_message({"go": 1})
    theirs.send(1, torch.arange(6).view(2, 3).T)
    found, more = ours.receive_both(2, 2, into=torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(found, numbers) and more.tolist() == [7, 9]
    assert ours.receive_message() == {"go": 1}
    assert torch.equal(ours.receive_numbers(1, (3, 2)), torch.arange(6).view(2, 3).T)
    assert theirs.sent == 3 * 8 + 2 + 6 * 8 and ours.sent == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(2, bytes(8), session=bytes(16)), "frame 0 from the client belongs to another session"),
        (frame(2, bytes(8), sequence=1), "frame 0 from the client says that it is number 1"),
        (frame(1, bytes(8)), r"frame 0 from the client is step 1 \(conv1\), not step 2 \(act1\)"),
        (frame(77, bytes(8)), "is step 77, not step 2"),
        (frame(MESSAGE, b"{}"), "is a message, not step 2"),
        (frame(2, bytes(7)), r"for step 2 \(act1\) has 7 bytes, not 8"),
        (frame(2, b"", size=1 << 63), f"has {1 << 63} bytes, not 8"),
        (frame(2, bytes(3), size=8), r"was lost at frame 0 from it, step 2 \(act1\) \(it hung up\)"),
        (frame(2, b"")[:10], "was lost at frame 0 from it"),
        (b"", "was lost at frame 0 from it"),
    ],
)
def test_a_wrong_frame_is_named(pair: Pair, data: bytes, said: str) -> None:
    channel, other = pair
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)
    with pytest.raises((EngineError, ConnectionError), match=said):
        channel.receive(2, 8)


def test_a_frame_that_comes_twice_or_too_early_is_refused(pair: Pair) -> None:
    channel, other = pair
    other.sendall(frame(1, bytes(8)) + frame(1, bytes(8)))
    channel.receive(1, 8)
    with pytest.raises(EngineError, match="frame 1 from the client says that it is number 0"):
        channel.receive(1, 8)
    other.sendall(frame(2, bytes(8), sequence=2))


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff\xff"])
def test_a_message_that_is_none(pair: Pair, content: bytes) -> None:
    channel, other = pair
    other.sendall(frame(MESSAGE, content))
    with pytest.raises(EngineError, match="is no message"):
        channel.receive_message()


def test_a_message_of_many_values_is_not_parsed(pair: Pair) -> None:
    """A list of lists takes some 25 times the memory of its text."""
    channel, _ = pair
    with pytest.raises(EngineError, match="holds too many values"):
        channel.parse_message(b'{"a": [' + b"[]," * (channels.MOST_VALUES // 2) + b"0]}")


def test_a_message_that_is_too_long_is_not_read(pair: Pair) -> None:
    channel, other = pair
    other.sendall(frame(MESSAGE, b"", size=channels.LONGEST_MESSAGE + 1))
    with pytest.raises(EngineError, match=f"has {channels.LONGEST_MESSAGE + 1} bytes"):
        channel.receive_message()


def test_a_silent_peer_meets_a_deadline(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SILENCE_SECONDS", 0.2)
    quiet = Channel(pair[1], "server")
    with pytest.raises(EngineError, match="the server was silent for 0 s at frame 0 from it, step 0"):
        quiet.receive(0, 8)


def test_a_peer_that_is_gone_is_named_by_who_sends(pair: Pair) -> None:
    channel, other = pair
    other.close()
    with pytest.raises(ConnectionError, match=r"connection to the client was lost at frame 0 to it, step 1 \(conv1\)"):
        channel.send(1, bytes(1 << 24))


def test_tls_between_two_that_trust_each_other_and_nobody_else(tmp_path: Path) -> None:
    make_keys(tmp_path / "ours", ["127.0.0.1"])
    make_keys(tmp_path / "others", ["127.0.0.1"])
    for folder, trusted in (("ours/client", True), ("others/client", False), (None, False)):
        address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
        with listen(address) as listener:
            heard: list[object] = []

            def serve(listener: socket.socket = listener, heard: list[object] = heard) -> None:
                try:
                    channel = accept(listener, "client", tls_of(tmp_path / "ours/server"))
                    heard.append(channel.receive(0, 1 << 20).sum())
                    channel.close()
                except (EngineError, ConnectionError) as error:
                    heard.append(error)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                channel = connect(address, "server", None if folder is None else tls_of(tmp_path / folder))
                channel.send(0, np.ones(1 << 20, np.uint8))
                channel.close()
            except (EngineError, ConnectionError):
                assert not trusted
            thread.join()
            assert (heard == [1 << 20]) == trusted, folder


def test_a_port_that_is_taken() -> None:
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    with listen(address), pytest.raises(EngineError, match=f"cannot listen on {address}"):
        listen(address)
