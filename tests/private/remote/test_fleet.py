"""Two servers and two dealers of one network, without shared state, behind one TCP balancer that takes turns."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

from benchmarks.soak import (
    HOST,
    NEAR,
    SIZE,
    Jobs,
    Supervisor,
    network,
    prepare,
    run_dealer,
    run_refill,
    run_server,
)
from deepshare.errors import EngineError
from deepshare.private import connect
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LotPool
from deepshare.private.remote import client
from deepshare.private.remote.refill import Refill
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.tls import tls_of


def run_balancer(port: int, servers: list[int]) -> None:
    """Forward each connection to the next server that is there; for a process of its own."""
    turns = itertools.cycle(servers)
    with socket.create_server((HOST, port)) as listener:
        while True:
            guest, _ = listener.accept()
            for server in itertools.islice(turns, len(servers)):
                with suppress(ConnectionRefusedError):
                    behind = socket.create_connection((HOST, server))
                    for pair in ((guest, behind), (behind, guest)):
                        threading.Thread(target=_forward, args=pair, daemon=True).start()
                    break
            else:
                guest.close()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Fleet:
    """All processes, and where they listen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.balancer, *ports = free_ports(HOST, 5)
        self.dealers = dict(zip("ab", ports[:2], strict=True))
        servers = dict(zip("ab", ports[2:], strict=True))
        jobs: Jobs = {"balancer": (run_balancer, (self.balancer, list(servers.values())))}
        for one in "ab":
            jobs[f"dealer-{one}"] = (run_dealer, (folder, self.dealers[one], f"dealer-{one}"))
            jobs[f"refill-{one}"] = (run_refill, (folder, self.dealers[one], "server", f"server-{one}"))
            jobs[f"server-{one}"] = (run_server, (folder, servers[one], f"server-{one}"))
        self.staff = Supervisor(jobs)
        for name in sorted(jobs, key=lambda name: name.startswith("server")):
            if name.startswith("server"):
                _wait(folder / "pools" / name / ABOUT)
            self.staff.start(name)
        for one in "ab":
            _wait(folder / f"server-{one}.events")

    def fill(self, pool: str, name: str, dealer: str) -> Path:
        """Lots for a client from a dealer; the server gets its halves meanwhile."""
        folder, tls = self.folder / "pools" / pool, tls_of(self.folder / "keys" / name)
        with closing(Refill(folder, "client", f"{HOST}:{self.dealers[dealer]}", tls)) as refill:
            while len(names(folder)) < 6:  # some come before the server has all of its halves
                refill.fill()
                time.sleep(0.1)
        return folder

    def used(self, server: str) -> set[bytes]:
        """Lots that a server has used."""
        path = self.folder / f"server-{server}.lots"
        return {bytes.fromhex(line) for line in path.read_text().split()}


def _wait(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    prepare(folder, 3)
    found = Fleet(folder)
    yield found
    found.staff.stop()


def ask(fleet: Fleet, pool: Path, name: str) -> None:
    """One image, in a session of its own."""
    images = torch.randn(1, *SIZE)
    keys = fleet.folder / "keys" / name
    with connect(f"{HOST}:{fleet.balancer}", pool=pool, tls=keys, ahead=False) as remote:
        logits = remote.ask(images).logits
    assert float((logits - network().evaluate(images)).abs().max()) < NEAR


def names(pool: Path) -> set[bytes]:
    with closing(LotPool(pool, "client", network())) as lots:
        return set(lots.names())


def test_clients_reach_the_server_of_their_pool(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {one: fleet.fill(f"client-{one}", f"client-{number}", one) for number, one in enumerate("ab", 1)}
    dealt = {one: names(pool) for one, pool in mine.items()}
    for number, one in enumerate("ab", 1):
        for _ in range(3):  # each begins a session, wherever the balancer sends it first
            ask(fleet, mine[one], f"client-{number}")
    for one, pool in mine.items():
        spent = dealt[one] - names(pool)
        assert len(spent) >= 3 and spent <= fleet.used(one)
    assert fleet.used("a").isdisjoint(fleet.used("b"))

    # A folder with pools of both: whichever server is there answers.
    both = fleet.fill("both/a", "client-3", "a").parent
    fleet.fill("both/b", "client-3", "b")
    ask(fleet, both, "client-3")
    fleet.staff.processes["server-a"].kill()
    fleet.staff.processes["server-a"].join()
    ask(fleet, both, "client-3")

    # A pool of the server that is gone alone: one line, after a while, and no lot is spent.
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.5)
    left = names(mine["a"])
    with pytest.raises(EngineError, match="is not the server that your pool was dealt for: ask that one"):
        ask(fleet, mine["a"], "client-1")
    assert names(mine["a"]) == left
