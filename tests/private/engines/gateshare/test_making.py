"""Pools that two parties make: they go on after any kill, and their lots are a dealer's in all that follows."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.client import ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.making import (
    ClientMaking,
    ServerMaking,
    add_to_pool,
    make_pool,
    pool_path,
    read_request,
    read_usable,
)
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.marks import Marks
from deepshare.private.engines.gateshare.preprocessing.pool import MADE, LotPool, pools_in
from deepshare.private.engines.gateshare.preprocessing.unfinished import FOLDER, Unfinished
from deepshare.private.engines.gateshare.protocols.local import real_logits
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import Channel, RefusalError
from tests.private.engines.gateshare.making_process import SIZE, small_program
from tests.private.engines.gateshare.two_party import InTheOpen

ROOT = Path(__file__).parents[4]
Change = Callable[[str], None]


@pytest.fixture(autouse=True)
def _open_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "Encrypted", InTheOpen)


def both(
    tmp_path: Path,
    images: int = 3,
    stop: Change = lambda party: None,
    told: Callable[[float, str], None] = lambda share, layer: None,
) -> list[BaseException | None]:
    """Both parties in threads; `stop` is called before each unit is saved, and may raise."""
    left, right = socket.socketpair()
    program, errors = small_program(), [None, None]

    class Stopped(Unfinished):
        def save(self, tag: bytes, arrays: together.Arrays) -> None:
            stop(threading.current_thread().name)
            super().save(tag, arrays)

    def run(place: int, connection: socket.socket) -> None:
        channel = Channel(connection, ("client", "server")[place])
        try:
            with torch.no_grad():
                if place == 0:
                    making = ServerMaking(program, tmp_path / "server", "client", channel, left=100)
                    while not (request := channel.receive_message()).get("end"):
                        making.answer(request)
                else:
                    make_pool(program.outline(), tmp_path / "client", channel, images, told)
        except BaseException as error:
            errors[place] = error  # type: ignore[call-overload]
        finally:
            channel.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepshare.private.engines.gateshare.making.Unfinished", Stopped)
        threads = [
            threading.Thread(target=run, args=(place, end), name=("server", "client")[place])
            for place, end in enumerate((left, right))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    return list(errors)


def server_pool(tmp_path: Path) -> Path:
    ((path, _),) = pools_in(tmp_path / "server", "server", MADE)
    return path


def check_lots(tmp_path: Path, images: int = 3) -> None:
    """Every lot of both pools gives the logits of the clear."""
    program = small_program()
    ours = LotPool(tmp_path / "client", "client", program.outline())
    theirs = LotPool(server_pool(tmp_path), "server", program)
    assert (ours.session, ours.number_format, ours.dealt) == (theirs.session, theirs.number_format, False)
    assert ours.names() == theirs.names() and len(ours.names()) == ours.left() == images
    steps = schedule(program, ours.number_format, dealt=False)
    for name in ours.names():
        mine, other = ours.take(name), theirs.take(name)
        infer(steps, mine, other)
    assert ours.left() == theirs.left() == 0
    for pool in (ours, theirs):
        with pytest.raises(RefusalError, match="is spent: correlated randomness may be used once only"):
            pool.take(name)
        pool.close()


def infer(steps: Any, mine: Lot, other: Lot) -> None:
    images = torch.randn(1, *SIZE)
    server, client = ServerParty(steps, b""), ClientParty(steps, {})
    assert list(server.masked_weights()) == []
    material = client.preprocess(mine, fresh_seed())
    ready = server.preprocess([(other, range(1))], material.openings)
    left, right = (Channel(one, "other") for one in socket.socketpair())
    meters = [LayerMeter([one], "client_bytes", len(steps.program.operations)) for one in (left, right)]
    thread = threading.Thread(target=lambda: server.infer(ready, left, meters[0]))
    thread.start()
    logits = real_logits(client.infer(images, material, right, meters[1]), steps.steps[steps.output].scale)
    thread.join()
    assert float((logits - steps.program.evaluate(images)).abs().max()) < 0.05


def test_a_pool_is_made_and_every_lot_serves_once(tmp_path: Path) -> None:
    assert both(tmp_path, 3) == [None, None]
    assert not (tmp_path / "client" / FOLDER).exists() and not (server_pool(tmp_path) / FOLDER).exists()
    # More of the same, into the same pools.
    assert both(tmp_path, 2) == [None, None]
    check_lots(tmp_path, 5)


@pytest.mark.parametrize("party", ["server", "client"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_it_goes_on_with_the_units_that_both_have(tmp_path: Path, party: str, at: int) -> None:
    units = {"server": 0, "client": 0}

    def stop(who: str) -> None:
        if who == party and units[who] == at:
            raise OSError("cut")
        units[who] += 1

    assert all(error is not None for error in both(tmp_path, 3, stop))
    assert units[party] == at
    first, counted = min(units.values()), {"server": 0, "client": 0}

    def count(who: str) -> None:
        counted[who] += 1

    shares: list[float] = []
    assert both(tmp_path, 3, count, lambda share, layer: shares.append(share)) == [None, None]
    total = len(together.unit_weights(_steps(), 3))
    assert counted == {"server": total - first, "client": total - first}
    # What was done before is told at once, so that it does not count as time.
    assert len(shares) == total - first + bool(first) and shares == sorted(set(shares)) and shares[-1] == 1
    check_lots(tmp_path)


def _steps() -> Any:
    program = small_program()
    return schedule(program, calibrate(program), dealt=False)


def test_a_client_that_missed_the_end_gets_the_same_lots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise OSError("cut")

    with monkeypatch.context() as patch:
        real = "deepshare.private.engines.gateshare.making.add_to_pool"

        def add(pool: Path, party: Any, *rest: Any, **named: Any) -> None:
            (add_to_pool if party == "server" else lost)(pool, party, *rest, **named)

        patch.setattr(real, add)
        assert [type(error) for error in both(tmp_path)][1] is OSError
    assert len(LotPool(server_pool(tmp_path), "server", small_program()).names()) == 3
    assert both(tmp_path, 3, lambda _: pytest.fail("a unit is made again")) == [None, None]
    check_lots(tmp_path)


def test_units_that_are_damaged_are_made_again(tmp_path: Path) -> None:
    def stop(who: str) -> None:
        if who == "client" and len(list((tmp_path / "client" / FOLDER).glob("0*"))) == 3:
            raise OSError("cut")

    assert all(both(tmp_path, 3, stop))
    unit = tmp_path / "client" / FOLDER / "00002"
    unit.write_bytes(unit.read_bytes()[:-9])
    assert both(tmp_path, 3) == [None, None]
    check_lots(tmp_path)


def test_lots_in_the_servers_pool_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is killed before it discards the units, and the client's last unit is damaged meanwhile."""

    def killed(pool: Path) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("deepshare.private.engines.gateshare.making.discard", killed)
        assert None not in both(tmp_path, 1)
    assert (server_pool(tmp_path) / FOLDER).exists()
    last = max(path for path in (tmp_path / "client" / FOLDER).iterdir() if path.name != "batch.json")
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    _, error = both(tmp_path, 1)
    assert isinstance(error, EngineError) and "not all units of these lots are done" in str(error)
    assert not (server_pool(tmp_path) / FOLDER).exists()
    last.write_bytes(whole)
    assert both(tmp_path, 1) == [None, None]
    check_lots(tmp_path, 1)


def test_other_weights_and_other_pools_are_refused(tmp_path: Path) -> None:
    assert both(tmp_path, 1) == [None, None]
    pool = server_pool(tmp_path)
    with closing(Marks(pool)) as marks:
        assert not marks.bind(bytes(32))
    (tmp_path / "server").rename(tmp_path / "elsewhere")
    errors = both(tmp_path, 1)
    assert "this server has no pool of the client's: prepare with another --pool" in str(errors[0])
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger/photo.png").touch()
    with pytest.raises(EngineError, match=r"holds photo\.png and is no pool: give an empty folder"):
        ClientMaking(small_program().outline(), tmp_path / "stranger", Channel(socket.socketpair()[0], "server"))


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"prepare": 0},
        {"prepare": 9},
        {"prepare": True, "session": "", "batch": ""},
        {"prepare": 1, "session": "00"},
    ],
)
def test_requests_that_say_something_else_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(RefusalError):
        read_request(request_)
    with pytest.raises(RefusalError):
        read_usable({"usable": [3]}, 3)
    assert pool_path(Path("p"), "../a b", bytes(16)).parent == Path("p")


class Process:
    """A party's process, and the lines that it said."""

    def __init__(self, party: str, port: int, pool: Path, module: str = "making_process") -> None:
        command = [sys.executable, "-m", f"tests.private.engines.gateshare.{module}", party, str(port), str(pool)]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()

    def end(self) -> str:
        with suppress(ProcessLookupError):
            self.process.kill()
        return self.process.communicate()[1]


@pytest.mark.slow
def test_kills_of_either_party_at_random_units(tmp_path: Path) -> None:
    chance = random.Random(3)
    for attempt in range(12):
        (port,) = free_ports("127.0.0.1", 1)
        server = Process("server", port, tmp_path / "server")
        assert next(server.lines()) == "ready"
        client = Process("client", port, tmp_path / "client")
        victim, left = (server, client)[attempt % 2], chance.randrange(1, 3)
        for line in victim.lines():
            left -= line == "unit"
            if left == 0:
                victim.process.kill()
                break
        done = client.process.wait(120) == 0
        server.end()
        client.end()
        if done:
            break
    assert done
    pool = LotPool(tmp_path / "client", "client", small_program().outline())
    found = len(pool.names())
    pool.close()
    # A client that was killed just after the end asks for three more.
    assert found in (3, 6)
    check_lots(tmp_path, found)


@pytest.mark.slow
def test_kills_of_either_party_at_random_points_of_inference(tmp_path: Path) -> None:
    lots, chance = 40, random.Random(5)
    assert both(tmp_path, lots) == [None, None]
    took: dict[str, list[str]] = {"server": [], "client": []}
    answers: list[str] = []
    for attempt in range(8):
        (port,) = free_ports("127.0.0.1", 1)
        server = Process("server", port, tmp_path / "server", "asking_process")
        assert next(server.lines()) == "ready"
        client = Process("client", port, tmp_path / "client", "asking_process")
        rest = chance.randrange(1, 7)
        for line in client.lines():
            took["client"] += [line] * line.startswith("took")
            answers += [line] * (not line.startswith("took"))
            rest -= 1
            if not rest:
                break
        time.sleep(chance.random() * 0.02)
        first, second = ((server, client), (client, server))[attempt % 2]
        first.process.kill()
        time.sleep(0.3)
        second.process.kill()
        for party, process in (("server", server), ("client", client)):
            said = process.process.communicate()[0].splitlines()
            took[party] += [line for line in said if line.startswith("took")]
            answers += [line for line in said if line in ("right", "wrong")]
    assert answers and set(answers) == {"right"}
    for party, names in took.items():
        assert len(set(names)) == len(names), f"the {party} used a lot twice"
    # The server takes nothing that the client has not taken: it is named by it.
    assert set(took["server"]) <= set(took["client"])
    program = small_program()
    ours = LotPool(tmp_path / "client", "client", program.outline())
    theirs = LotPool(server_pool(tmp_path), "server", program)
    # Nothing is lost but what was taken; a line may be lost between the mark and the pipe, one a kill.
    assert lots - len(took["client"]) - 8 <= ours.left() <= lots - len(took["client"])
    assert theirs.left() >= ours.left()
    steps = schedule(program, ours.number_format, dealt=False)
    for name in ours.names():
        infer(steps, ours.take(name), theirs.take(name))
    for pool in (ours, theirs):
        pool.close()
