"""Messages in both directions at once, over plain connections and over TLS."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deepshare.errors import EngineError
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport import duplex as module
from deepshare.private.transport.channel import HEADER, Channel
from deepshare.private.transport.duplex import Duplex
from deepshare.private.transport.tls import tls_of
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends, well

LARGE = os.urandom(12 << 20)  # more than the buffers of a connection hold
NAMES = [f"name {number}" for number in range(4)]


def talk(channel: Channel) -> None:
    """Say and hear much, in threads of its own, twice; in between and afterwards the channel is a channel."""
    duplex = Duplex(channel, 3)
    for turn in range(2):
        with duplex, ThreadPoolExecutor() as pool:
            sent = [pool.submit(duplex.put, name, name.encode() + LARGE[turn:]) for name in NAMES]
            got = {name: pool.submit(duplex.get, name) for name in reversed(NAMES)}
            for one in sent:
                one.result()
            for name, future in got.items():
                assert future.result() == name.encode() + LARGE[turn:]
        channel.send(5, b"between")
        assert channel.receive(5, 7).tobytes() == b"between"


def test_large_messages_cross_and_the_channel_goes_on() -> None:
    ends = well(at_both_ends(talk, talk))
    each = sum(2 + 2 * len(name) + len(LARGE) for name in NAMES)
    assert ends.sent == [2 * each - len(NAMES) + 14] * 2


def test_over_tls(tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"])
    left, right = socket.socketpair()
    contexts = tls_of(tmp_path / "server").server_context(), tls_of(tmp_path / "client").client_context()
    found: list[BaseException | None] = []

    def run(server: bool) -> None:
        try:
            if server:
                connection = contexts[0].wrap_socket(left, server_side=True)
            else:
                connection = contexts[1].wrap_socket(right, server_hostname="127.0.0.1")
            talk(Channel(connection, "peer"))
            found.append(None)
        except BaseException as error:
            found.append(error)
            raise

    threads = [threading.Thread(target=run, args=(server,), daemon=True) for server in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [None, None]


def test_frames_have_the_size_that_is_expected() -> None:
    def send(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            duplex.send(3, b"four", b"more")

    def receive(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            duplex.receive(3, 9)

    ends = at_both_ends(send, receive)
    assert ends.lines[1] == "a frame from the sender has 8 bytes, not 9: start both parties again"
    assert isinstance(ends.errors[0], ConnectionError)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEADER.pack(bytes(16), 0, 3, 1 << 40), "has 1099511627776 bytes"),
        (HEADER.pack(bytes(16), 0, 4, 8), "is step 4"),
        (HEADER.pack(bytes(16), 1, 3, 8), "says that it is number 1"),
        (HEADER.pack(b"x" * 16, 0, 3, 8), "belongs to another session"),
        (HEADER.pack(bytes(16), 0, 3, 1) + b"x", "has no name"),
        (HEADER.pack(bytes(16), 0, 3, 3) + b"\xff\xffx", "has no name"),
        (HEADER.pack(bytes(16), 0, 3, 3) + b"\x01\x00x" + HEADER.pack(bytes(16), 1, 3, 0), "more than was asked for"),
        (HEADER.pack(bytes(16), 0, 3, 0), "ended before all was made"),
        (HEADER.pack(bytes(16), 0, 3, 20) + b"\x01\x00x", "hung up"),
        (b"", "hung up"),
    ],
)
def test_other_bytes_end_it_with_one_line(data: bytes, reason: str) -> None:
    def receive(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            if "asked" not in reason:
                duplex.get("awaited")

    ends = at_both_ends(lambda channel: channel._socket.sendall(data), receive)
    assert isinstance(ends.errors[1], EngineError | ConnectionError) and reason in ends.lines[1]


def test_messages_that_nobody_asks_for_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 16)

    def flood(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            for _ in range(100):
                duplex.put("flood", bytes(1 << 12))

    def receive(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            duplex.get("awaited")

    assert "sends more than anybody asks for" in at_both_ends(flood, receive).lines[1]


def test_empty_messages_with_names_of_their_own_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 16)

    def flood(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            for number in range(100):
                duplex.put(f"flood {number}", b"")

    def receive(channel: Channel) -> None:
        with Duplex(channel, 3) as duplex:
            duplex.get("awaited")

    assert "sends more than anybody asks for" in at_both_ends(flood, receive).lines[1]
