"""A dealer that runs, its server and two clients over TLS, each killed at random points."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.pool import LOTS, LotPool
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import connected
from deepshare.private.remote.dealer import DealerService, Dealership
from deepshare.private.remote.refill import Refill
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import Channel, LaterError
from deepshare.private.transport.tls import tls_of
from tests.cli.command import Cli
from tests.disk import Disk
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.running import Running, server

ROOT = Path(__file__).parents[3]
SERVER = "DeepShare server"


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> Path:
    network_file.write(tmp_path / "network.json", program)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 2)
    return tmp_path


class Dealing:
    """A dealer in this process."""

    def __init__(self, folder: Path, level: int = 6, images: int = 8, address: str = "127.0.0.1:0") -> None:
        dealership = Dealership(folder / "dealer", folder / "network.json", level=level, images=images)
        self.service = DealerService(dealership, address, tls_of(folder / "keys" / "server"), SERVER)
        self.thread = threading.Thread(target=self.service.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.service.stop()
        self.thread.join(20)


@pytest.fixture
def dealing(folder: Path) -> Iterator[Dealing]:
    found = Dealing(folder)
    yield found
    found.stop()


def refill(folder: Path, name: str, address: str) -> Refill:
    party: Holder = "server" if name == "server" else "client"
    return Refill(folder / "pools" / name, party, address, tls_of(folder / "keys" / name))


def fill(folder: Path, name: str, address: str) -> int:
    with closing(refill(folder, name, address)) as one:
        return one.fill()


def held(folder: Path) -> list[Path]:
    """Files of lots at the dealer, once the last one that was confirmed is overwritten."""
    deadline = time.monotonic() + 10
    while (found := list((folder / "dealer").rglob(f"{LOTS}/*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def names(folder: Path, name: str, program: Program) -> set[bytes]:
    return set(LotPool(folder / "pools" / name, "server" if name == "server" else "client", program).names())


def test_lots_reach_their_owners_alone_and_serve(folder: Path, dealing: Dealing, program: Program) -> None:
    address = dealing.service.address
    assert fill(folder, "client-1", address) == 0  # the server does not have the other halves yet
    assert fill(folder, "server", address) == 6
    assert fill(folder, "client-1", address) == 6
    fill(folder, "client-2", address)
    fill(folder, "server", address)
    fill(folder, "client-2", address)
    mine = [names(folder, name, program) for name in ("client-1", "client-2")]
    assert mine[0].isdisjoint(mine[1]) and names(folder, "server", program) == mine[0] | mine[1]
    assert held(folder) == []  # nothing is held longer than needed
    running = Running(program, folder / "keys", pools=[folder / "pools" / "server"])
    try:
        tls, images = tls_of(folder / "keys" / "client-1"), torch.randn(5, *SIZE)
        with connected(server(running.address, folder / "pools" / "client-1", tls)) as client:
            logits = client.ask(images).logits
            assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-4
            for name in ("client-1", "server", "client-1"):  # more, while both are at work
                fill(folder, name, address)
            client.ask(images[:3])
            with pytest.raises(EngineError, match="the pool is good for 0 more"):
                client.ask(images[:1])
    finally:
        running.stop()


def test_whoever_is_not_the_server_gets_no_half_of_it(folder: Path, dealing: Dealing) -> None:
    with pytest.raises(EngineError, match="your certificate is not that of a client, or of the server"):
        Refill(folder / "x", "server", dealing.service.address, tls_of(folder / "keys" / "client-1"))
    with pytest.raises(EngineError, match="your certificate is not that of a client, or of the server"):
        Refill(folder / "x", "client", dealing.service.address, tls_of(folder / "keys" / "server"))
    make_keys(folder / "foreign", ["127.0.0.1"])
    with pytest.raises(EngineError):
        Refill(folder / "x", "client", dealing.service.address, tls_of(folder / "foreign" / "client"))


def test_what_a_kill_or_a_power_cut_left_blocks_nobody(folder: Path, dealing: Dealing, program: Program) -> None:
    address = dealing.service.address
    fill(folder, "client-1", address)  # halves wait for the server
    dealing.stop()
    lots = {role: folder / "dealer" / role / "DeepShare client-1" / LOTS for role in ("server", "client")}
    first = min(path.name for path in lots["server"].iterdir())
    (lots["server"] / first).write_bytes(b"")  # named, and not yet written
    for number in range(8):  # killed again and again while a half was written
        (lots["client"] / f".{first}.{number}").write_bytes(b"half a half")
    again = Dealing(folder)
    try:
        address = again.service.address
        with pytest.raises(EngineError, match="a lot was damaged, and is deleted: ask again"):
            fill(folder, "server", address)
        assert fill(folder, "server", address) == 5
        for name, count in (("client-1", 5), ("server", 1), ("client-1", 1)):
            assert fill(folder, name, address) == count
    finally:
        again.stop()
    assert names(folder, "client-1", program) == names(folder, "server", program)
    assert len(names(folder, "server", program)) == 6
    assert held(folder) == []


def test_a_half_that_another_connection_has_fetched_harms_nobody(folder: Path, dealing: Dealing) -> None:
    one = dealing.service._dealership
    one.deal("DeepShare client-1", 0)
    (owner, path), *_ = one.waiting("server", SERVER)
    one.drop(path)  # as it was confirmed over there
    with pytest.raises(LaterError, match="another connection of yours fetches the same lots"):
        one.read("server", owner, path)
    assert path.name in {half.name for _, half in one.waiting("client", owner)}


def test_a_client_that_says_it_has_nothing_fills_no_disk(
    folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets what its clients use up, and no more than twice their levels and what they may have discarded."""
    monkeypatch.setattr("deepshare.private.remote.refill.MOST_OWNERS", 1)
    dealing = Dealing(folder, level=6, images=100)
    greedy = refill(folder, "client-1", dealing.service.address)
    spare = spare_lots(schedule(*network_file.read(folder / "network.json")), 100)

    def ask(rounds: int) -> int:
        monkeypatch.setattr(greedy._marks, "fresh", list)
        for _ in range(rounds):
            greedy.fill()
            fill(folder, "client-2", dealing.service.address)
            fill(folder, "server", dealing.service.address)
        return len(names(folder, "server", program))

    try:
        assert ask(6) == ask(3) == 12 + spare + 6
        with closing(LotPool(folder / "pools" / "server", "server", program)) as pool:
            own = [name for name in pool.names() if pool.owner(name) == "DeepShare client-1"]
            pool.take_all(own[:3])
        keeping = refill(folder, "server", dealing.service.address)
        with closing(keeping):
            assert {len(keeping._report()["fresh"]) for _ in range(4)} == {1}  # each client in its turn
            keeping.fill(), keeping.fill()
            greedy.fill()
            assert keeping.fill() == 3
            monkeypatch.setattr(keeping, "_report", dict)
            with pytest.raises(EngineError, match="say how many fresh lots you have of each client"):
                keeping.fill()
    finally:
        greedy.close()
        dealing.stop()


def test_a_folder_has_one_dealer_and_a_pool_one_that_fills_it(folder: Path, dealing: Dealing) -> None:
    with pytest.raises(EngineError, match=r"another dealer deals from .*/dealer: end that one"):
        Dealing(folder)
    address = dealing.service.address
    with closing(refill(folder, "client-1", address)), pytest.raises(EngineError, match=r"is filling .*/client-1"):
        refill(folder, "client-1", address)
    fill(folder, "client-1", address)
    dealing.stop()
    Dealing(folder).stop()


def test_a_lot_is_on_the_disk_before_it_is_confirmed(
    folder: Path, dealing: Dealing, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dealer overwrites its half then."""
    send, kept = Channel.send_message, list[bool]()

    def watched(channel: Channel, message: Mapping[str, Any]) -> None:
        if "got" in message:
            kept.append(disk.survives(folder / "pools" / "server" / LOTS / message["got"]))
        send(channel, message)

    monkeypatch.setattr(Channel, "send_message", watched)
    fill(folder, "client-1", dealing.service.address)
    fill(folder, "server", dealing.service.address)
    assert kept == [True] * 6


def test_a_pool_that_cannot_be_written_is_one_line(folder: Path, dealing: Dealing) -> None:
    (folder / "file").touch()
    for pool in (Path("/proc/x"), folder / "file", folder / "file" / "x"):
        with pytest.raises(EngineError, match=f"{pool} cannot be written"):
            Refill(pool, "client", dealing.service.address, tls_of(folder / "keys" / "client-1"))


def test_a_fill_says_how_many_lots_came(folder: Path, dealing: Dealing, cli: Cli) -> None:
    def once(name: str, *flags: str) -> str:
        keys = ("--tls", folder / "keys" / name, "--dealer", dealing.service.address)
        return cli("private", "pool", "fill", folder / "pools" / name, *keys, "--once", *flags).err.splitlines()[-1]

    nothing = (
        "0 lots came: the pool is full, the other party has to ask the dealer first, or all is dealt that the dealer's "
        "limits allow"
    )
    assert once("client-1") == nothing
    assert once("server", "--server") == "6 lots came"
    assert once("client-1") == "6 lots came"
    assert once("client-1") == nothing


def test_the_door_does_not_wait_for_lots_that_are_dealt(folder: Path, dealing: Dealing) -> None:
    """The server's report does; handshakes go on meanwhile."""
    server, client = (refill(folder, name, dealing.service.address) for name in ("server", "client-1"))
    with closing(server), closing(client):
        lock = dealing.service._dealership._lock
        with lock:
            waits = threading.Thread(target=server.fill, daemon=True)
            waits.start()
            waits.join(0.3)
            greeted = threading.Thread(target=lambda: refill(folder, "client-2", dealing.service.address).close())
            greeted.start()
            greeted.join(10)
            assert waits.is_alive() and not greeted.is_alive()
        waits.join(20)
        assert not waits.is_alive() and client.fill() == 0


def test_two_dealings_do_not_mix(folder: Path, dealing: Dealing) -> None:
    fill(folder, "client-1", dealing.service.address)
    os.rename(folder / "dealer", folder / "old")  # noqa: PTH104 - under the running one's feet
    other = Dealing(folder)
    try:
        with pytest.raises(EngineError, match="is of another dealing"):
            fill(folder, "client-1", other.service.address)
    finally:
        other.stop()


def test_filling_goes_on_when_the_dealer_is_back(folder: Path, program: Program) -> None:
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    first = Dealing(folder, level=3, address=address)
    fill(folder, "client-1", address)  # lots are dealt for clients that have asked
    command = [sys.executable, "-m", "deepshare", "private", "pool", "fill", str(folder / "pools" / "server")]
    flags = ["--server", "--dealer", address, "--tls", str(folder / "keys" / "server"), "--every", "0.2"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().endswith(f"is filled from {address}\n")
        wait_for_lots(folder, program, 3)
        first.stop()
        assert process.stderr.readline().endswith("; trying again every 0.2 s\n")
        again = Dealing(folder, level=6, address=address)
        try:
            fill(folder, "client-1", address)
            wait_for_lots(folder, program, 6)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            again.stop()
    finally:
        process.kill()
        process.wait()


def wait_for_lots(folder: Path, program: Program, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(names(folder, "server", program)) < count:
        assert time.monotonic() < deadline, names(folder, "server", program)
        time.sleep(0.05)


KEEP = """
import sys
from pathlib import Path
from deepshare.private.remote.refill import Refill
from deepshare.private.transport.tls import tls_of
folder, name, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
party = "server" if name == "server" else "client"
Refill(folder / "pools" / name, party, address, tls_of(folder / "keys" / name)).keep_full(0.05)
"""

DEAL = """
import sys
from pathlib import Path
from deepshare.private.remote.dealer import Dealership, DealerService
from deepshare.private.transport.tls import tls_of
folder, address = Path(sys.argv[1]), sys.argv[2]
dealership = Dealership(folder / "dealer", folder / "network.json", level=40, images=40)
DealerService(dealership, address, tls_of(folder / "keys" / "server"), "DeepShare server").run()
"""


@pytest.mark.slow
def test_each_of_the_three_is_killed_and_goes_on(folder: Path, program: Program) -> None:
    """kill -9 at random points: in the end both sides have the same lots, each once, and nothing is left behind."""
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    scripts = {"dealer": (DEAL, address), "server": (KEEP, "server", address), "client-1": (KEEP, "client-1", address)}

    def start(name: str) -> "subprocess.Popen[bytes]":
        code, *arguments = scripts[name]
        command = [sys.executable, "-c", code, str(folder), *arguments]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": f"{ROOT}/src"}, stderr=subprocess.DEVNULL)

    processes = {name: start(name) for name in scripts}
    drawn = random.Random(7)
    try:
        for _ in range(12):
            time.sleep(drawn.uniform(1.0, 6.0))
            processes[drawn.choice(list(scripts))].kill()
            for name, process in processes.items():
                time.sleep(0.1)
                if process.poll() is not None:  # killed, or a party whose dealer was
                    processes[name] = start(name)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    dealing = Dealing(folder, level=40, images=40)
    try:
        for _ in range(6):
            for name in ("client-1", "server"):
                with suppress(EngineError):
                    fill(folder, name, dealing.service.address)
    finally:
        dealing.stop()
    assert names(folder, "client-1", program) == names(folder, "server", program)
    assert len(names(folder, "server", program)) >= 40
    assert held(folder) == []
