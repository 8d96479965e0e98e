"""Pools that two parties make: they go on after any kill, and their lots are a dealer's in all that follows."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.making import (
    ClientMaking,
    add_to_pool,
    pool_path,
    read_request,
    read_usable,
)
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.marks import Marks
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.preprocessing.unfinished import FOLDER
from deepshare.private.transport.channel import Channel, RefusalError
from tests.private.engines.gateshare.killed_processes import small_program
from tests.private.engines.gateshare.pools_made import both, check_lots, server_pool
from tests.private.engines.gateshare.two_party import InTheOpen

ROOT = Path(__file__).parents[4]
Change = Callable[[str], None]


@pytest.fixture(autouse=True)
def _open_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "Encrypted", InTheOpen)


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
    # Setup is told, then what both have done before, so that neither counts as time.
    assert len(shares) == total - first + 2 and shares[1:] == sorted(set(shares[1:])) and shares[-1] == 1
    assert shares[0] >= shares[1] and bool(shares[1]) == bool(first)
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
