"""Strangers at the port of a server, silent, many or fast, and clients that are answered meanwhile."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from deepshare.private.ir.program import Program
from deepshare.private.remote.client import when_free
from deepshare.private.remote.guests import front_door
from deepshare.private.remote.session import PROTOCOL
from deepshare.private.transport.channel import Channel, PeerBusyError
from tests.private.remote.attacked import deal, genuine, keys, network
from tests.private.remote.running import Running, greet

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pools and keys of two clients."""
    found = tmp_path_factory.mktemp("strangers")
    deal(found, images=40)
    return found


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture
def running(program: Program, folder: Path) -> Iterator[Running]:
    service = Running(program, folder / "keys", pools=[folder / "server"], max_clients=4, max_each=2)
    yield service
    service.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def idle(stack: ExitStack, address: str, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that say nothing, without those that are turned away while they connect."""
    host, port = address.split(":")
    found = []
    for _ in range(count):
        with suppress(ConnectionResetError):
            found.append(stack.enter_context(socket.create_connection((host, int(port)), 20, (source, 0))))
    return found


@contextmanager
def attacked(folder: Path, descriptors: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, with no more than so many descriptors."""
    command = f"ulimit -n {descriptors} && exec {sys.executable} {ROOT}/tests/private/remote/attacked.py {folder}"
    path = f"{ROOT}/src:{ROOT}"
    with subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
            assert process.poll() is None
        finally:
            process.kill()


def test_a_server_out_of_descriptors_goes_on(program: Program, tmp_path: Path) -> None:
    """300 connections without a certificate, and no more than 256 descriptors; then none at all for a while."""
    with attacked(tmp_path, descriptors=256) as (process, address):
        for source in ("127.0.0.1", "127.0.0.2"):
            with ExitStack() as strangers:
                idle(strangers, address, 300, source)
            when_free(lambda: genuine(address, tmp_path, program))
        process.send_signal(signal.SIGUSR1)
        while len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 256:
            time.sleep(0.01)
        with ThreadPoolExecutor() as executor:
            asking = executor.submit(genuine, address, tmp_path, program)
            with pytest.raises(TimeoutError):
                asking.result(1.0)
            process.send_signal(signal.SIGUSR2)
            assert asking.result(30) < 20


FLOOD = """
import socket, sys, time
host, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
held, count, started = [], 0, time.monotonic()
print(flush=True)
while time.monotonic() < started + 20:
    while count < rate * (time.monotonic() - started):
        one, count = socket.socket(), count + 1
        one.setblocking(False)
        one.bind(("127.0.0.2", 0))
        one.connect_ex((host, port))
        held.append(one)
        if len(held) > 2000:
            held.pop(0).close()
    time.sleep(0.001)
"""


def test_a_flood_from_one_host_holds_up_nobody_else(running: Running, folder: Path) -> None:
    """2,000 connections a second that never say anything, and clients from elsewhere."""
    host, port = running.address.split(":")
    waits = []
    with subprocess.Popen([sys.executable, "-c", FLOOD, host, port, "2000"], stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            flood.stdout.readline()
            deadline = time.monotonic() + 60
            while running.listening._door.turned_away < 1000:  # it has taken all the room there is
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for _ in range(5):
                started = time.monotonic()
                greet(running.address, keys(folder)).close()
                waits.append(time.monotonic() - started)
            assert flood.poll() is None
        finally:
            flood.kill()
    assert max(waits) < 2.0, waits
    assert b"deepshare_turned_away_total" in running.listening.metrics()


def test_hosts_share_the_room_for_strangers(
    running: Running, folder: Path, program: Program, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes from a host with few connections gets in at once, and in the place of one of a host with many."""
    monkeypatch.setattr(running.listening._door, "_most_strangers", 32)
    monkeypatch.setattr(front_door, "GRACE_SECONDS", 60.0)
    for number in (2, 3, 4):
        idle(stack, running.address, 31, f"127.0.0.{number}")
    deadline = time.monotonic() + 20
    shares = list[int]()
    while sorted(shares) != [10, 11, 11]:
        assert time.monotonic() < deadline, shares
        time.sleep(0.02)
        shares = list(Counter(guest.host for guest in list(running.listening._door._guests)).values())
    genuine(running.address, folder, program)


def test_a_client_that_is_turned_away_asks_again(
    running: Running, folder: Path, program: Program, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one address with a flood it waits until the first strangers may be sent away."""
    monkeypatch.setattr(running.listening._door, "_most_strangers", 8)
    idle(stack, running.address, 8)
    with pytest.raises(PeerBusyError, match="hung up at once: too many connect to it from where you are"):
        genuine(running.address, folder, program)
    assert when_free(lambda: genuine(running.address, folder, program)) < 20


def test_accept_that_fails_for_want_of_descriptors_is_tried_again(
    running: Running, program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = running.listening._door
    fails = iter([OSError(24, "Too many open files")] * 5)

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def accept(self) -> tuple[socket.socket, object]:
            if (error := next(fails, None)) is not None:
                raise error
            return listener.accept()

    listener = door.listener
    monkeypatch.setattr(door, "listener", Full())
    door._selector.unregister(listener)
    door._selector.register(door.listener, 1)
    door._tell(lambda: None)
    genuine(running.address, folder, program)
    assert next(fails, None) is None


def test_a_server_that_stops_does_not_try_to_accept(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors just before: the door would look all the time."""
    door = running.listening._door
    looks, look = list[float](), door._look

    def watched() -> None:
        looks.append(time.monotonic())
        look()

    monkeypatch.setattr(door, "_look", watched)
    door._tell(lambda: setattr(door, "_accept_at", time.monotonic()))
    door.stop_accepting()
    time.sleep(0.5)
    assert len(looks) < 20


def test_silent_connections_are_no_threads_and_go_after_a_while(
    running: Running, program: Program, folder: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "GREETING_SECONDS", 1.0)
    before = threading.active_count()
    silent = idle(stack, running.address, 300)
    assert genuine(running.address, folder, program) < 20
    assert threading.active_count() <= before + 2
    assert len(silent) == 300 and all(one.recv(1) == b"" for one in silent)  # sent away


def test_newer_knocks_do_not_push_out_a_client_that_is_about_to_show_its_certificate(
    running: Running, program: Program, folder: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.listening._door, "_most_strangers", 64)
    host, port = running.address.split(":")
    plain = socket.create_connection((host, int(port)), timeout=20)
    idle(stack, running.address, 200)
    with keys(folder).client_context().wrap_socket(plain, server_hostname=host) as connection:
        channel = Channel(connection, "server")
        channel.send_message({"protocol": PROTOCOL})
        assert channel.receive_message(1 << 20)["protocol"] == PROTOCOL
    time.sleep(front_door.GRACE_SECONDS)
    assert genuine(running.address, folder, program) < 20
