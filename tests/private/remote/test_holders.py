"""Holders of a certificate that deviate: lots of others, places that are kept, pools that go; genuine clients go on."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.marks import FILE
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool, write_pools
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.ask import connect
from deepshare.private.remote.client import connected
from deepshare.private.remote.guests import front_door, places, processes
from deepshare.private.remote.session import PROTOCOL
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.channel import (
    HEADER,
    LONGEST_REQUEST,
    MESSAGE,
    Channel,
    PeerBusyError,
    PeerError,
    reach,
)
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.running import Running, greet, server, wish

OWNERS = ("DeepShare client-1", "DeepShare client-2")


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> Path:
    """Pools that name their owners as the certificates do."""
    write_pools(tmp_path / "pools", program.outline(), calibrate(program), 6, lambda *_: None, 2, OWNERS)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 2)
    return tmp_path


@pytest.fixture
def running(program: Program, folder: Path) -> Iterator[Running]:
    service = Running(program, folder / "keys", pools=[folder / "pools/server"])
    yield service
    service.stop()


def keys(folder: Path, number: int) -> Tls:
    return tls_of(folder / "keys" / f"client-{number}")


def ask(running: Running, folder: Path, program: Program, *, pool: int, key: int) -> None:
    images = torch.randn(1, *SIZE)
    with connected(server(running.address, folder / f"pools/client-{pool}", keys(folder, key))) as client:
        logits = client.ask(images).logits
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-4


def test_lots_belong_to_a_certificate(running: Running, folder: Path, program: Program) -> None:
    with pytest.raises(PeerError, match="these lots belong to another certificate: ask with your own pool"):
        ask(running, folder, program, pool=1, key=2)
    ask(running, folder, program, pool=1, key=1)
    ask(running, folder, program, pool=2, key=2)


def test_lots_of_others_are_as_good_as_spent_within_a_session(running: Running, folder: Path, program: Program) -> None:
    channel = greet(running.address, keys(folder, 1))
    channel.send_message(wish(program, folder / "pools/client-1"))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel.send_message({"offsets": False})
    stolen = LotPool(folder / "pools/client-2", "client", program)
    name = stolen.names()[0].hex()
    stolen.close()
    channel.send_message({"take": [(name, [0])]})
    assert channel.receive_message() == {"spent": [name]}
    channel.send_message({"take": [(name, [0])]})
    channel.receive_message()
    said = f"{OWNERS[0]} names lots of {OWNERS[1]}, and gets none of them (pool server)"
    assert running.wait_for(said) == f"network: {said}"
    channel.close()
    assert running.said.count(f"network: {said}") == 1
    ask(running, folder, program, pool=2, key=2)


def test_names_are_those_of_all_clients(program: Program, tmp_path: Path) -> None:
    for names in (OWNERS[:1], (OWNERS[0], OWNERS[0])):
        with pytest.raises(EngineError, match="1 names of 2 clients: give each the name in its certificate"):
            write_pools(tmp_path, program.outline(), calibrate(program), 1, lambda *_: None, 2, names)
    assert list(tmp_path.iterdir()) == []


def test_a_pool_without_names_serves_whoever_has_its_lots(program: Program, folder: Path) -> None:
    """As pools that were dealt before."""
    write_pools(folder / "old", program.outline(), calibrate(program), 2, lambda *_: None)
    running = Running(program, folder / "keys", pools=[folder / "old/server"])
    shutil.copytree(folder / "old/client", folder / "pools/client-3")
    ask(running, folder, program, pool=3, key=2)
    running.stop()


def test_a_pool_that_is_deleted_is_forgotten(program: Program, folder: Path) -> None:
    """Its figures go, those of others stay."""
    write_pools(folder / "used-up", program.outline(), calibrate(program), 1, lambda *_: None)
    (folder / "used-up/server").rename(folder / "pools/used-up")
    running = Running(program, folder / "keys", pools=[folder / "pools"])
    assert b'pool="used-up"' in running.listening.metrics()
    shutil.rmtree(folder / "pools/used-up")
    said = running.listening.metrics()  # before the server has noticed
    assert b'pool="used-up"' not in said and b'pool="server"' in said
    running.wait_for("pool used-up is gone")
    assert len(running.listening._hosts["network"].dealings) == 1  # type: ignore[union-attr]
    ask(running, folder, program, pool=1, key=1)
    shutil.rmtree(folder / "pools")
    time.sleep(5.0)
    assert running.listening.metrics()
    assert sum("there is no finished pool" in line for line in running.said) == 1
    running.stop()


def test_a_damaged_pool_is_told_once_and_concerns_no_other(program: Program, folder: Path) -> None:
    running = Running(program, folder / "keys", pools=[folder / "pools"])
    for name in ("added", "broken"):
        write_pools(folder / name, program.outline(), calibrate(program), 20, lambda *_: None)
    marks = folder / "broken/server" / FILE
    marks.write_bytes(bytes(range(256)) * (marks.stat().st_size // 256))
    (folder / "broken/server").rename(folder / "pools/a-broken")
    (folder / "added/server").rename(folder / "pools/z-added")
    running.wait_for("pool z-added added")
    assert running.wait_for("a-broken/marks.sqlite is damaged").startswith("network: ")
    marks = folder / "pools/z-added" / FILE
    for path in marks.parent.glob(f"{FILE}-*"):
        path.unlink()
    marks.write_bytes(bytes(range(256)) * (marks.stat().st_size // 256))
    running.wait_for("z-added/marks.sqlite is damaged")
    ask(running, folder, program, pool=1, key=1)
    time.sleep(5.0)
    assert sum("is damaged" in line for line in running.said) == 2
    assert b'pool="z-added"' not in running.listening.metrics()
    running.stop()


def test_a_pool_that_is_low_is_warned_of_once(program: Program, folder: Path) -> None:
    write_pools(folder / "low", program.outline(), calibrate(program), 5, lambda *_: None)
    shutil.copytree(folder / "low/client", folder / "pools/client-9")
    running = Running(program, folder / "keys", pools=[folder / "low/server"])
    for _ in range(4):
        ask(running, folder, program, pool=9, key=1)
    running.wait_for("pool server for client has 1 of 5 images left, 20% or less: make more")
    ask(running, folder, program, pool=9, key=1)
    running.wait_for("pool server for client has 0 of 5 images left, 5% or less: make more")
    time.sleep(3.0)
    assert running.levels["network: pool server for client has 0 of 5 images left, 5% or less: make more"] == [
        "WARNING"
    ]
    running.stop()


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("tls", [True, False])
def test_a_goodbye_is_no_loss(program: Program, folder: Path, tls: bool, prepared: bool) -> None:
    running = Running(program, folder / "keys" if tls else None, pools=[folder / "pools/server"])
    own = folder / "keys/client-1" if tls else None
    with connect(running.address, pool=folder / "pools/client-1", tls=own) as remote:
        remote.classify(torch.randn(1, *SIZE))
        if prepared:
            remote.left()  # waits until the next lot is
    deadline = time.monotonic() + 10
    while running.listening.sessions:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.stop()
    assert not any("lost" in line for line in running.said), running.said
    assert not any("WARNING" in levels for levels in running.levels.values()), running.levels


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def hold(running: Running, folder: Path, program: Program, number: int, stack: ExitStack) -> Channel:
    """Take a place, and say nothing more."""
    channel = greet(running.address, keys(folder, number))
    stack.callback(channel.close)
    channel.send_message(wish(program, folder / f"pools/client-{number}"))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    return channel


def test_messages_within_a_session_are_short(
    running: Running, folder: Path, program: Program, stack: ExitStack
) -> None:
    channel = hold(running, folder, program, 1, stack)
    channel.connection.sendall(HEADER.pack(channel.session, 2, MESSAGE, LONGEST_REQUEST + 1))
    with pytest.raises(PeerError, match="has 65537 bytes, not 65536"):
        channel.receive_message()


def test_the_words_of_a_client_stay_out_of_the_log(
    running: Running, folder: Path, program: Program, stack: ExitStack
) -> None:
    channel = hold(running, folder, program, 1, stack)
    channel.connection.sendall(channel.failure("s3cret"))
    running.wait_for("(DeepShare client-1): it ended the inference")
    assert not any("s3cret" in line for line in running.said)


def test_whoever_shows_a_certificate_is_no_stranger(running: Running, folder: Path) -> None:
    channel = reach(running.address, "server", keys(folder, 1))
    channel.send_message({"protocol": PROTOCOL, "network": "another"})
    with pytest.raises(PeerError, match="there is no such network here: name one of network"):
        channel.receive_message()
    running.wait_for("(DeepShare client-1): there is no such network here")
    assert b'deepshare_refusals_total{reason="refused"} 1.0' in running.listening.metrics()


def test_few_certificates_cannot_hold_all_places(
    program: Program, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has several and keeps the server waiting gives one up; nobody loses its only one."""
    write_pools(tmp_path / "pools", program.outline(), calibrate(program), 6, lambda *_: None, 3)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 3)
    running = Running(program, tmp_path / "keys", pools=[tmp_path / "pools/server"], max_clients=4, max_each=2)
    stack.callback(running.stop)
    held = [hold(running, tmp_path, program, number, stack) for number in (1, 1, 2, 2)]
    with pytest.raises(PeerBusyError, match="4 clients are being answered already: ask again later"):
        ask(running, tmp_path, program, pool=3, key=3)  # so soon nobody is late
    monkeypatch.setattr(places, "SPARED_SECONDS", 0.5)
    time.sleep(0.6)
    ask(running, tmp_path, program, pool=3, key=3)
    running.wait_for("it kept a place waiting, has others, and somebody needs it")
    with pytest.raises((PeerError, ConnectionError)):
        held[0].receive_message()
    last = hold(running, tmp_path, program, 3, stack)
    time.sleep(0.6)
    assert running.listening.sessions == 4  # two of the second, one of each other
    with pytest.raises(PeerBusyError, match="ask again later"):
        hold(running, tmp_path, program, 1, stack)
    for channel in (held[1], held[2], held[3], last):  # all are still at it
        channel.send_message({"offsets": False})
        channel.send_message({"take": [("00" * 16, [0])]})
        assert channel.receive_message() == {"spent": ["00" * 16]}


def test_few_certificates_cannot_hold_all_connections(
    running: Running, folder: Path, program: Program, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.listening._door, "_most_guests", 6)
    monkeypatch.setattr(front_door, "GRACE_SECONDS", 0.2)
    for _ in range(6):
        stack.callback(greet(running.address, keys(folder, 1)).close)
    ask(running, folder, program, pool=2, key=2)


def test_a_server_that_stops_answers_what_was_asked_and_no_more(
    running: Running, folder: Path, program: Program
) -> None:
    stopped: list[bool] = []

    def stop(sent: bool, *_: object) -> None:
        if not sent and not stopped:  # the server is at it
            stopped.append(True)
            running.listening._door.stop_accepting()
            time.sleep(0.2)

    images = torch.randn(1, *SIZE)
    with connected(server(running.address, folder / "pools/client-1", keys(folder, 1))) as client:
        assert client.ask(images, stop).logits.shape == (1, 5)
        with pytest.raises(PeerBusyError, match="the server is stopping: ask again later"):
            client.ask(images)
    assert running.listening.drain(5.0)


def test_a_fault_at_the_front_door_does_not_end_the_server(running: Running, folder: Path, program: Program) -> None:
    door = running.listening._door

    def fail() -> None:
        raise KeyError("a fault of ours")

    door._tell(fail)
    running.wait_for("a fault at the front door: KeyError")
    ask(running, folder, program, pool=1, key=1)


def test_last_words_have_a_deadline() -> None:
    """A peer that does not read, and sends a byte now and then."""
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.05):
            theirs.send(b"\0")

    thread = threading.Thread(target=drip)
    thread.start()
    started = time.monotonic()
    assert Channel(ours, "peer")._last_words() is None
    assert time.monotonic() - started < 3
    ended.set()
    thread.join()


@pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")
def test_one_client_does_not_hold_up_an_engine_without_pools(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(program, folder / "keys", engine="crypten")
    wanted = {"images": 1, "outline": outline.digest(program)}

    def hold() -> Channel:
        channel = greet(running.address, keys(folder, 1))
        channel.send_message(wanted | {"address": "127.0.0.1:9"})
        return channel

    def other() -> None:
        with connected(server(running.address, None, keys(folder, 2), "crypten")) as client:
            client.ask(torch.randn(1, *SIZE))

    first = hold()
    assert "start" in first.receive_message()
    second = hold()  # waits for the first of its certificate
    other()
    second.close()
    # Where there is one turn alone, whoever keeps it for long loses it to who waits.
    monkeypatch.setattr(running.listening._turns, "_at_once", 1)
    monkeypatch.setattr(processes, "TURN_SECONDS", 1.0)
    other()
    assert "and others wait" in running.wait_for("it took more than 1 s")
    first.close()
    for address in ("192.0.2.7:0", "here", "192.0.2.7:70000", "127.0.0.1:٣"):
        channel = greet(running.address, keys(folder, 1))
        channel.send_message(wanted | {"address": address})
        with pytest.raises(PeerError, match="the client gave no address"):
            channel.receive_message()
    running.stop()
