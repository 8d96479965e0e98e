"""Pools on disk: every lot is used once, whatever happens to a party or to its disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepshare import zoo
from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import client as client_module
from deepshare.private.engines.gateshare import cost_model, main
from deepshare.private.engines.gateshare.client import ClientMaterial, ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, DISCARDED, LOTS, SPENT, LotPool, write_pools
from deepshare.private.engines.gateshare.protocols.schedule import send_client_openings
from deepshare.private.ir.program import Linear, Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.remote.server import ModelServer
from deepshare.private.runtime.engine import Outcome, Role, Task, find_engine
from deepshare.private.runtime.party import free_ports
from tests.private.engines.gateshare.trial import SIZE, shared_resnet, shuffled_norms

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
    spare = write_pools(folder, *network_file.read(folder / "network.json"), IMAGES, lambda *count: told.append(count))
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


def marks(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


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
    spent = {role: marks(pools / role / SPENT) for role in ("server", "client")}
    # A lot that the client could not use is spent on its side alone.
    assert len(spent["server"]) == 4
    assert sorted(spent["client"]) == sorted(spent["server"] + marks(pools / "client" / DISCARDED))
    for role, names in spent.items():
        assert len(list((pools / role / LOTS).iterdir())) == IMAGES + SPARES - len(names)


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
    assert len(marks(pools / "client" / DISCARDED)) == SPARES
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
    assert marks(pools / "server" / SPENT) == marks(pools / "client" / SPENT) == []


def test_both_have_marked_a_lot_on_the_disk_before_any_of_it_leaves(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server is slow: the client has to wait for its mark."""
    order: list[str] = []
    fsync, send, take = os.fsync, send_client_openings, LotPool.take

    def watched_fsync(number: int) -> None:
        fsync(number)
        path = Path(f"/proc/self/fd/{number}").readlink()
        if path.name == SPENT:
            order.append(f"{path.parent.name} marked {len(path.read_bytes().splitlines())}")

    def watched_send(*arguments: Any) -> None:
        order.append("openings")
        send(*arguments)

    def slow_take(pool: LotPool, name: bytes) -> Lot:
        time.sleep(0.2)
        return take(pool, name)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(client_module, "send_client_openings", watched_send)
    monkeypatch.setattr(LotPool, "take", slow_take)
    images = torch.randn(2, *SIZE)
    check(ask(program, pools, images), program, images)
    assert order.index("openings") == len(order) - 1
    assert {f"{role} marked {n}" for role in ("client", "server") for n in (1, 2)} <= set(order)


def test_a_restored_disk_of_the_client_gets_no_lot_twice(program: Program, pools: Path) -> None:
    images = torch.randn(2, *SIZE)
    shutil.copytree(pools / "client", pools / "copy")
    check(ask(program, pools, images), program, images)
    shutil.rmtree(pools / "client")
    shutil.copytree(pools / "copy", pools / "client")
    check(ask(program, pools, images), program, images)
    spent = (pools / "server" / SPENT).read_text().split()
    assert len(spent) == len(set(spent)) == 4


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
    pool = LotPool(pools / "server", "server", program)
    assert (pools / "server" / LOTS / name.hex()).exists() and not pool.is_fresh(name)
    with pytest.raises(EngineError, match="is spent"):
        pool.take(name)


def test_a_mark_that_was_not_finished_marks_nothing_and_spoils_no_other(program: Program, pools: Path) -> None:
    pool = LotPool(pools / "server", "server", program)
    first, second = pool.names()[:2]
    pool.take(first)
    with (pools / "server" / SPENT).open("ab") as file:
        file.write(second.hex()[:10].encode())
    assert not pool.is_fresh(first) and pool.is_fresh(second)
    pool.take(second)
    assert not pool.is_fresh(first) and not pool.is_fresh(second)


@pytest.mark.parametrize(
    "garbage", [b"g" * 32 + b"\n", b"\xff" * 33, b"a word\n" * 10, b"\n" * 33, b"00" * 15 + b"\n00"]
)
def test_marks_that_are_none_are_no_marks_to_go_on_with(program: Program, pools: Path, garbage: bytes) -> None:
    pool = LotPool(pools / "server", "server", program)
    name = pool.names()[0]
    (pools / "server" / SPENT).write_bytes(garbage)
    for use in (pool.names, lambda: pool.is_fresh(name), lambda: pool.take(name)):
        with pytest.raises(EngineError, match="spent is damaged, and lots must not be used twice: deal anew"):
            use()


def test_pools_of_another_party_network_weights_or_dealing_are_refused(program: Program, pools: Path) -> None:
    with pytest.raises(EngineError, match="is the pool of the client: the server needs the other one"):
        LotPool(pools / "client", "server", program)
    torch.manual_seed(32)
    with pytest.raises(EngineError, match="dealt for another network or plan"):
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
    for missing, said in ((SPENT, "has lost its marks"), (ABOUT, "no finished pool")):
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
    about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple("abcd"))
    said: list[str] = []
    engine = find_engine("gateshare")
    with pytest.raises(EngineError, match="give --pool"):
        ModelServer(engine=engine, options={}, program=program, about=about, log=said.append).listen("127.0.0.1", 0)
    server = ModelServer(
        engine=engine, options=OPTIONS, program=program, about=about, log=said.append, pool=Path("server")
    ).listen("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.socket.getsockname()[1]}"
    images = torch.randn(2, *SIZE)
    try:
        with connected(address, None, Path("client")) as client:
            result = client.ask(images)
        with connected(address) as client, pytest.raises(EngineError, match="give your pool of the same dealing"):
            client.ask(images)
    finally:
        server.shutdown()
    assert float((result.logits - program.evaluate(images)).abs().max()) < 2.0**-3
    assert result.cost.online.comparisons == 2 * program.comparisons
