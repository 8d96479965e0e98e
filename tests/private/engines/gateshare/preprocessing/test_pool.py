"""Pools on disk: every lot is used once, whatever happens to a party or to its disk."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepshare import zoo
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import client, cost_model, main
from deepshare.private.engines.gateshare.client import ClientMaterial, ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.marks import FILE, UNUSABLE, USED
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LOTS, LotPool, write_pools
from deepshare.private.engines.gateshare.protocols import schedule as schedules
from deepshare.private.ir.program import Linear, Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import RefusalError
from tests.private.engines.gateshare.trial import SIZE, shared_resnet, shuffled_norms
from tests.private.remote.running import Running, server

IMAGES, SPARES = 6, 2
OPTIONS = {"dealer": "pool"}


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(31)
    return translate(shuffled_norms(zoo.resnet18(width=2, num_classes=4)), SIZE)


@pytest.fixture(scope="module")
def dealt(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pools")
    network_file.write(folder / "network.json", program)
    told: list[tuple[int, int]] = []
    outline_and_format = network_file.read(folder / "network.json")
    spare, distance = write_pools(folder, *outline_and_format, IMAGES, lambda *count: told.append(count))
    assert 0 < distance < 2.0**-4
    assert spare == SPARES and told == [(n + 1, IMAGES + SPARES) for n in range(IMAGES + SPARES)]
    return folder


@pytest.fixture
def pools(dealt: Path, tmp_path: Path) -> Path:
    for party_folder in ("server", "client"):
        shutil.copytree(dealt / party_folder, tmp_path / party_folder)
    return tmp_path


def ask(program: Program, pools: Path, images: Tensor) -> dict[Role, Outcome | Exception]:
    """One connection between both parties, in threads."""
    roles: tuple[Role, Role] = ("server", "client")
    ports = free_ports("127.0.0.1", 2)
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(roles, ports, strict=True)}
    found: dict[Role, Outcome | Exception] = {}

    def run(role: Role) -> None:
        whose, mine = (program, None) if role == "server" else (program.outline(), images)
        task = Task(
            role=role,
            program=whose,
            addresses=addresses,
            images=mine,
            count=len(images),
            options=OPTIONS,
            extras={"pool": pools / role},
        )
        try:
            found[role] = main.run(task, lambda: None)
        except (EngineError, ConnectionError) as error:
            found[role] = error

    threads = [threading.Thread(target=run, args=(role,)) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def marks(pool: Path, *states: int) -> list[str]:
    """Ids of the lots of a pool in some states, as another process reads them from the disk."""
    with closing(sqlite3.connect(pool / FILE)) as base:
        rows = base.execute("SELECT hex(id), state FROM lots").fetchall()
    return [name.lower() for name, state in rows if state in states]


def wait_for_lots(folder: Path, count: int) -> None:
    """Spent lots are erased by a thread of their own."""
    deadline = time.monotonic() + 20
    while len(list((folder / LOTS).iterdir())) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check(found: dict[Role, Outcome | Exception], program: Program, images: Tensor) -> Outcome:
    client, server = found["client"], found["server"]
    assert isinstance(client, Outcome) and client.logits is not None and isinstance(server, Outcome), found
    assert float((client.logits - program.evaluate(images)).abs().max()) < 2.0**-3
    return server


def test_the_dealer_needs_no_weight(dealt: Path, program: Program) -> None:
    text = (dealt / "network.json").read_text()
    found, numbers = network_file.read(dealt / "network.json")
    assert numbers == calibrate(program) and found.comparisons == program.comparisons
    assert '"hidden"' in json.loads(text)["outline"]
    assert all(op.weight.is_meta for op in found.operations if isinstance(op, Linear))


def test_two_connections_use_up_lots_and_hand_over_weights_once(program: Program, pools: Path) -> None:
    images = torch.randn(2, *SIZE)
    found = ask(program, pools, images)
    first = check(found, program, images)
    client = found["client"]
    assert isinstance(client, Outcome)
    steps = schedule(program, calibrate(program))
    assert first.offline.dealer_bytes == 2 * steps.lot_bytes(1, "server")
    assert client.offline.dealer_bytes >= 2 * steps.lot_bytes(1, "client")  # more where one had to be replaced
    assert client.offline.dealer_bytes % steps.lot_bytes(1, "client") == 0
    second = check(ask(program, pools, images), program, images)
    assert first.session.server_bytes > 0 == second.session.server_bytes
    spent = {role: marks(pools / role, USED, UNUSABLE) for role in ("server", "client")}
    # A lot that the client could not use is spent on its side alone.
    assert len(spent["server"]) == 4
    assert sorted(spent["client"]) == sorted(spent["server"] + marks(pools / "client", UNUSABLE))
    for role, names in spent.items():
        wait_for_lots(pools / role, IMAGES + SPARES - len(names))


def unusable_first(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The first lots that the client prepares are of no use, and no others."""
    preprocess, left = ClientParty.preprocess, iter([True] * count)

    def unlucky(self: ClientParty, lot: Lot, seed: bytes) -> ClientMaterial:
        return replace(preprocess(self, lot, seed), unsafe=torch.tensor([next(left, False)]))

    monkeypatch.setattr(ClientParty, "preprocess", unlucky)


def test_as_many_images_can_be_asked_as_were_dealt_whatever_lots_are_lost(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unusable_first(monkeypatch, SPARES)
    monkeypatch.setattr(cost_model, "_MOST_BYTES", 1)  # one image at a time
    for count in (2, 4):
        images = torch.randn(count, *SIZE)
        check(ask(program, pools, images), program, images)
    assert len(marks(pools / "client", UNUSABLE)) == SPARES
    assert "1 images, and the pool is good for 0 more" in str(ask(program, pools, torch.randn(1, *SIZE))["client"])


def test_what_is_discarded_does_not_count_as_an_image(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = LotPool(pools / "client", "client", program)
    assert pool.left() == IMAGES
    unusable_first(monkeypatch, 1)
    images = torch.randn(2, *SIZE)
    check(ask(program, pools, images), program, images)
    assert pool.left() == IMAGES - 2


def test_more_images_than_are_left_are_refused_before_anything_is_spent(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "_MOST_BYTES", 1)
    found = ask(program, pools, torch.randn(IMAGES + 1, *SIZE))
    assert f"{IMAGES + 1} images, and the pool is good for {IMAGES} more" in str(found["client"])
    assert marks(pools / "server", USED, UNUSABLE) == marks(pools / "client", USED, UNUSABLE) == []


def test_both_have_marked_a_lot_on_the_disk_before_any_of_it_leaves(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server is slow: the client has to wait for its mark."""
    order: list[str] = []
    take = LotPool.take_all

    def watched_send(*arguments: Any) -> None:
        order.extend(f"{role} marked {len(marks(pools / role, USED))}" for role in ("client", "server"))
        schedules.send_client_openings(*arguments)

    def slow_take(pool: LotPool, names: Sequence[bytes]) -> list[Lot]:
        time.sleep(0.2)
        return take(pool, names)

    monkeypatch.setattr(client, "send_client_openings", watched_send)
    monkeypatch.setattr(LotPool, "take_all", slow_take)
    images = torch.randn(2, *SIZE)
    check(ask(program, pools, images), program, images)
    assert order == ["client marked 2", "server marked 2"]


def test_a_mark_is_on_the_disk_when_it_is_made(program: Program, pools: Path) -> None:
    """Write-ahead log, synchronous FULL: what a commit wrote is on the disk, whatever happens to the machine."""
    pool = LotPool(pools / "server", "server", program)
    assert pool._marks._base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert pool._marks._base.execute("PRAGMA synchronous").fetchone() == (2,)
    name = pool.names()[0]
    pool.take(name)
    wait_for_lots(pools / "server", IMAGES + SPARES - 1)
    # A power cut: nothing but what is in the files now.
    shutil.copytree(pools / "server", pools / "cut")
    assert not LotPool(pools / "cut", "server", program).is_fresh(name)
    # A write that the cut tore apart marks nothing, and spoils no other mark.
    log = pools / "cut" / f"{FILE}-wal"
    other = pool.names()[0]
    pool.take(other)
    wait_for_lots(pools / "server", IMAGES + SPARES - 2)
    shutil.rmtree(pools / "cut")
    shutil.copytree(pools / "server", pools / "cut")
    os.truncate(log, log.stat().st_size - 100)
    torn = LotPool(pools / "cut", "server", program)
    assert not torn.is_fresh(name) and len(torn.names()) == len(pool.names()) + 1


def test_spent_lots_are_overwritten_and_pools_are_the_owners_alone(program: Program, pools: Path) -> None:
    pool = LotPool(pools / "server", "server", program)
    path = pools / "server" / LOTS / pool.names()[0].hex()
    os.link(path, pools / "seen")
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes().strip(b"\0")
    pool.take(pool.names()[0])
    wait_for_lots(pools / "server", IMAGES + SPARES - 1)
    assert not (pools / "seen").read_bytes().strip(b"\0")
    secret = [path for role in ("server", "client") for path in (pools / role).rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in secret if not path.name.startswith(f"{FILE}-")} == {0}


def test_a_restored_disk_of_the_client_gets_no_lot_twice(program: Program, pools: Path) -> None:
    images = torch.randn(2, *SIZE)
    shutil.copytree(pools / "client", pools / "copy")
    check(ask(program, pools, images), program, images)
    shutil.rmtree(pools / "client")
    shutil.copytree(pools / "copy", pools / "client")
    check(ask(program, pools, images), program, images)
    assert len(marks(pools / "server", USED)) == 4


def test_a_lot_is_spent_also_for_whoever_opens_the_pool_anew(program: Program, pools: Path) -> None:
    pool = LotPool(pools / "server", "server", program)
    name = pool.names()[0]
    assert pool.is_fresh(name) and pool.take(name).id == name
    for again in (pool, LotPool(pools / "server", "server", program)):
        assert not again.is_fresh(name) and name not in again.names()
        with pytest.raises(EngineError, match="is spent"):
            again.take(name)
    with pytest.raises(EngineError, match="there is no lot 0000"):
        pool.take(bytes(16))


def test_a_full_disk_is_one_line_for_the_dealer(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many pages as SQLite takes for its first table."""
    connect = sqlite3.connect

    def full(*arguments: Any, **options: Any) -> sqlite3.Connection:
        base = connect(*arguments, **options)
        base.execute("PRAGMA max_page_count = 2")
        return base

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(EngineError, match=r"the marks in .*server cannot be written \(database or disk is full\)"):
        write_pools(tmp_path / "new", program.outline(), calibrate(program), 1, lambda *_: None)


def test_killed_while_it_takes_a_lot(program: Program, pools: Path) -> None:
    """The mark is on the disk before the lot is read: killed in between, the lot is lost and never used."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from deepshare.private.engines.gateshare.preprocessing import network_file\n"
        "from deepshare.private.engines.gateshare.preprocessing.pool import LotPool\n"
        "LotPool._read = lambda self, name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "program, _ = network_file.read(pathlib.Path(sys.argv[2]))\n"
        "pool = LotPool(pathlib.Path(sys.argv[1]), 'server', program)\n"
        "pool.take(pool.names()[0])\n"
    )
    network_file.write(pools / "network.json", program)
    name = LotPool(pools / "server", "server", program).names()[0]
    ended = subprocess.run([sys.executable, "-c", code, str(pools / "server"), str(pools / "network.json")])
    assert ended.returncode == -signal.SIGKILL
    assert (pools / "server" / LOTS / name.hex()).exists()  # until a pool is opened, which overwrites spent lots
    pool = LotPool(pools / "server", "server", program)
    assert not pool.is_fresh(name)
    with pytest.raises(EngineError, match="is spent"):
        pool.take(name)


@pytest.mark.parametrize("garbage", [b"", b"g" * 4096, b"SQLite format 3\0" + b"\xff" * 4080])
def test_marks_that_are_none_are_no_marks_to_go_on_with(program: Program, pools: Path, garbage: bytes) -> None:
    (pools / "server" / FILE).write_bytes(garbage)
    with pytest.raises(EngineError, match=r"marks.* (is damaged, and lots must not be used twice|cannot be written)"):
        LotPool(pools / "server", "server", program).names()


def test_two_processes_take_different_lots(program: Program, pools: Path) -> None:
    found: list[bytes] = []

    def take(pool: LotPool) -> None:
        for _ in range(3):
            while True:
                name = pool.names()[0]
                with suppress(RefusalError):  # the other has taken it
                    found.append(pool.take(name).id)
                    break

    threads = [threading.Thread(target=take, args=(LotPool(pools / "client", "client", program),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 6


def test_pools_of_another_party_network_weights_or_dealing_are_refused(program: Program, pools: Path) -> None:
    with pytest.raises(EngineError, match="is the pool of the client: the server needs the other one"):
        LotPool(pools / "client", "server", program)
    torch.manual_seed(32)
    with pytest.raises(EngineError, match="dealt for another network, plan or --answer"):
        LotPool(pools / "client", "client", translate(shared_resnet(), SIZE))
    LotPool(pools / "server", "server", program).bind(bytes(32))
    found = ask(program, pools, torch.randn(1, *SIZE))
    assert "was used with other weights" in str(found["server"])
    write_pools(pools / "other", program.outline(), calibrate(program), 1, lambda *_: None)
    shutil.rmtree(pools / "server")
    shutil.copytree(pools / "other" / "server", pools / "server")
    assert "is of another dealing" in str(ask(program, pools, torch.randn(1, *SIZE))["client"])


def test_damaged_pools_are_refused(program: Program, pools: Path) -> None:
    pool = LotPool(pools / "client", "client", program)
    name = pool.names()[0]
    path = pools / "client" / LOTS / name.hex()
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(EngineError, match="is damaged: it will not be used"):
        pool.take(name)
    pool.close()
    for missing, said in ((FILE, "has lost its marks"), (ABOUT, "no finished pool")):
        (pools / "client" / missing).unlink()
        with pytest.raises(EngineError, match=said):
            LotPool(pools / "client", "client", program)
    with pytest.raises(EngineError, match="client is there already"):
        write_pools(pools, program.outline(), calibrate(program), 1, lambda *_: None)
    (pools / "network.json").write_text("{}")
    with pytest.raises(EngineError, match="is no outline"):
        network_file.read(pools / "network.json")


def test_weights_that_change_are_refused_over_sessions(program: Program, pools: Path) -> None:
    images = torch.randn(1, *SIZE)
    check(ask(program, pools, images), program, images)
    last = program.operations[-1]
    assert isinstance(last, Linear)
    other = Program((*program.operations[:-1], replace(last, bias=last.bias + 1e-6)))
    assert "was used with other weights" in str(ask(other, pools, images)["server"])


def test_serve_and_ask_with_pools(program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pools)  # folders may be given from here
    with pytest.raises(EngineError, match="give --pool"):
        Running(program)
    running = Running(program, pools=[Path("server")])
    images = torch.randn(2, *SIZE)
    try:
        with connected(server(running.address, Path("client"))) as client:
            result = client.ask(images)
        with (
            connected(server(running.address, engine="gateshare")) as client,
            pytest.raises(EngineError, match="give your pool of the same dealing"),
        ):
            client.ask(images)
    finally:
        running.stop()
    assert float((result.logits - program.evaluate(images)).abs().max()) < 2.0**-3
    assert result.cost.online.comparisons == 2 * program.comparisons
