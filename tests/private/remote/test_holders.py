"""Holders of a certificate that deviate: lots of others, places that are kept, pools that go; genuine clients go on."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool, write_pools
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import connected
from deepshare.private.remote.connection import connect
from deepshare.private.remote.guests import apart
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.channel import Channel, PeerError
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
    channel.close()
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


@pytest.mark.parametrize("tls", [True, False])
def test_a_goodbye_is_no_loss(program: Program, folder: Path, tls: bool) -> None:
    running = Running(program, folder / "keys" if tls else None, pools=[folder / "pools/server"])
    own = folder / "keys/client-1" if tls else None
    with connect(running.address, pool=folder / "pools/client-1", tls=own) as remote:
        remote.classify(torch.randn(1, *SIZE))
        remote.left()  # the next lot is prepared
    deadline = time.monotonic() + 10
    while running.listening.sessions:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.stop()
    assert not any("lost" in line for line in running.said), running.said


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
    monkeypatch.setattr(apart, "TURN_SECONDS", 1.0)
    other()
    assert "and others wait" in running.wait_for("it took more than 1 s")
    first.close()
    for address in ("192.0.2.7:0", "here", "192.0.2.7:70000", "127.0.0.1:٣"):
        channel = greet(running.address, keys(folder, 1))
        channel.send_message(wanted | {"address": address})
        with pytest.raises(PeerError, match="the client gave no address"):
            channel.receive_message()
    running.stop()
