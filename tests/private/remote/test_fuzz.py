"""Mutated frames: through the parser alone, and through real sessions of a server, which goes on."""

import json
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.soak import mutated
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import connected
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.running import Running, greet, server, wish

FEW, MANY = 20_000, 1_000_000
FEW_SESSIONS, MANY_SESSIONS = 150, 10_000
FEW_LATER, MANY_LATER = 60, 1_000


class Script(socket.socket):
    """A socket from which prepared bytes come, and then the end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(socket.AF_UNIX)
        self._data, self._at = data, 0

    def settimeout(self, value: float | None) -> None:
        """It never waits."""

    def recv_into(self, buffer: memoryview, *_: int) -> int:  # type: ignore[override]
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def frames() -> bytes:
    """A message, and payload of 64 bytes for step 3."""
    body = json.dumps({"images": 1, "lots": ["ab" * 16], "session": "cd" * 16}).encode()
    message = HEADER.pack(bytes(16), 0, MESSAGE, len(body)) + body
    return message + HEADER.pack(bytes(16), 1, 3, 64) + bytes(range(64))


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_mutated_frames_through_the_parser(count: int) -> None:
    drawn, whole, passed, memory = random.Random(3), frames(), 0, 0.0
    for number in range(count):
        with Script(mutated(whole, drawn)) as end:
            channel = Channel(end, "client")
            with suppress(EngineError, ConnectionError):  # whatever else it raises is a fault
                assert isinstance(channel.receive_message(), dict)
                assert len(channel.receive(3, 64)) == 64
                passed += 1
        if number == count // 10:  # warm
            memory = megabytes()
    assert 0 < passed < count / 2
    assert megabytes() < memory * 1.1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture(scope="module")
def pools(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    write_pools(folder, program.outline(), calibrate(program), 30, lambda *_: None, 2)
    return folder


@pytest.fixture
def running(program: Program, pools: Path) -> Iterator[Running]:
    service = Running(program, pools=[pools / "server"])
    yield service
    service.stop()


@pytest.mark.parametrize("count", [FEW_SESSIONS, pytest.param(MANY_SESSIONS, marks=pytest.mark.slow)])
def test_mutated_frames_through_real_sessions(running: Running, program: Program, pools: Path, count: int) -> None:
    """Hello, request, or what follows is mutated; in between genuine clients are answered, and nothing is left."""
    drawn, host, port = random.Random(5), *running.address.split(":")
    request = json.dumps(wish(program, pools / "client-1")).encode()
    hello = json.dumps({"protocol": 3}).encode()
    follows = json.dumps({"offsets": True}).encode()
    before, opened, memory, deep = threading.active_count(), descriptors(), 0.0, 0
    for number in range(count):
        if number == count // 10:  # warm
            memory = megabytes()
        if number % max(50, count // 20) == 0:
            with connected(server(running.address, pools / "client-2")) as client:
                assert client.ask(torch.randn(1, *SIZE)).logits.shape == (1, 5)
        if number % 3 == 0:
            with socket.create_connection((host, int(port)), 20) as raw, suppress(OSError):
                raw.sendall(mutated(HEADER.pack(bytes(16), 0, MESSAGE, len(hello)) + hello, drawn))
            continue
        channel = greet(running.address)
        with suppress(OSError, EngineError):
            if number % 3 == 1:
                channel.connection.sendall(mutated(HEADER.pack(bytes(16), 1, MESSAGE, len(request)) + request, drawn))
            else:
                channel.send_message(json.loads(request))
                session = bytes.fromhex(channel.receive_message()["session"])
                deep += 1
                channel.connection.sendall(
                    mutated(HEADER.pack(session, 2, MESSAGE, len(follows)) + follows + drawn.randbytes(200), drawn)
                )
        channel.close()
    with connected(server(running.address, pools / "client-2")) as client:
        assert client.ask(torch.randn(1, *SIZE)).logits.shape == (1, 5)
    for _ in range(200):
        idle = running.listening.sessions == 0
        if idle and threading.active_count() <= before + 1 and descriptors() <= opened + 4:
            break
        threading.Event().wait(0.1)
    assert deep > count / 4  # so many were given a place before they sent it
    assert running.listening.sessions == 0
    assert threading.active_count() <= before + 1 and descriptors() <= opened + 4
    assert megabytes() < memory * 1.1
    assert not any("its part failed" in line for line in running.said)


PATIENCE = 0.2
"""Seconds that a client waits for an answer to what it has mutated."""


def mutate(channel: Channel, number: int, drawn: random.Random) -> None:
    """Let a channel send one of its frames mutated: all of it, or its beginning alone, which says what it is."""
    send = channel._send

    def changed(step: int, views: list[memoryview]) -> None:
        if channel._outward != number:
            send(step, views)
            return
        data = HEADER.pack(channel.session, number, step, sum(map(len, views))) + b"".join(views)
        end = drawn.choice([len(data), HEADER.size + 64])
        channel._outward, channel.silence = number + 1, PATIENCE
        channel.connection.sendall(mutated(data[:end], drawn) + data[end:])

    channel._send = changed  # type: ignore[method-assign]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("count", [FEW_LATER, pytest.param(MANY_LATER, marks=pytest.mark.slow)])
def test_mutated_frames_late_in_real_sessions(program: Program, tmp_path: Path, count: int, secure: bool) -> None:
    """A genuine client of whose frames one is mutated: the lots it takes, openings, masked images, bits, the end."""
    drawn = random.Random(7)
    write_pools(tmp_path, program.outline(), calibrate(program), count + 30, lambda *_: None, 2)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 2)
    tls = [tls_of(tmp_path / f"keys/client-{number}") if secure else None for number in (1, 2)]
    running = Running(program, tmp_path / "keys" if secure else None, pools=[tmp_path / "server"])
    try:
        frames = ask(running, program, tmp_path / "client-2", tls[1])
        before, opened, memory, refused = threading.active_count(), descriptors(), 0.0, Counter[int]()
        for number in range(count):
            if number == count // 10:  # warm
                memory = megabytes()
            if number % max(20, count // 20) == 0:
                ask(running, program, tmp_path / "client-2", tls[1])
            with connected(server(running.address, tmp_path / "client-1", tls[0])) as client:
                late = 2 + number % (frames - 2)
                mutate(client.channel, late, drawn)
                try:
                    client.ask(torch.randn(1, *SIZE))
                except (EngineError, OSError):  # of any other kind is a fault
                    refused[late] += 1
        ask(running, program, tmp_path / "client-2", tls[1])
        for _ in range(200):
            if (
                threading.active_count() <= before + 1
                and descriptors() <= opened + 4
                and not running.listening.sessions
            ):
                break
            threading.Event().wait(0.1)
        assert running.listening.sessions == 0
        assert threading.active_count() <= before + 1 and descriptors() <= opened + 4
        assert megabytes() < memory * 1.1
        assert set(refused) == set(range(2, frames))  # each of them, by either party
        assert not any("its part failed" in line or "fault" in line for line in running.said)
        assert b'reason="failed"' not in running.listening.metrics()
    finally:
        running.stop()


def ask(running: Running, program: Program, pool: Path, tls: Tls | None) -> int:
    """A genuine client is answered; returns how many frames it sent."""
    images = torch.randn(1, *SIZE)
    with connected(server(running.address, pool, tls)) as client:
        logits = client.ask(images).logits
        assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-4
        return client.channel._outward
