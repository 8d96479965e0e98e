"""kill -9 of either party, while lots are made and used: nothing serves twice, nothing is lost but what was spent."""

import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.preprocessing.pool import MADE, LotPool, pools_in
from deepshare.private.engines.gateshare.preprocessing.unfinished import Unfinished
from deepshare.private.runtime.party import free_ports
from tests.private.engines.gateshare.killed_processes import (
    IMAGES,
    Killable,
    Part,
    answering_server,
    asking_client,
    making_client,
    making_server,
    small_program,
)
from tests.private.engines.gateshare.pools_made import both, check_lots, infer, server_pool

few_and_many = pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])


@few_and_many
def test_kills_while_lots_are_made(tmp_path: Path, kills: int, chance: random.Random) -> None:
    kept: list[bytes] = []
    for attempt in range(kills):
        server, client = _started(tmp_path, making_server, making_client)
        victim, words = (server, client)[attempt % 2], chance.randrange(1, 4)
        for number, _ in enumerate(victim.words(), 1):
            if number == words:
                break
        time.sleep(chance.random() * 0.2)
        victim.kill()
        server.kill()
        client.kill()
        units = _units_of_both(tmp_path)
        assert units[: len(kept)] == kept or _added(tmp_path), "units that both had are gone"
        kept = units
    server, client = _started(tmp_path, making_server, making_client)
    *_, last = client.words()
    server.kill()
    client.kill()
    assert last == "done"
    with closing(LotPool(tmp_path / "client", "client", small_program().outline())) as pool:
        found = len(pool.names())
    # A client that was killed just after the end makes as many again.
    assert found and found % IMAGES == 0
    check_lots(tmp_path, found)


@few_and_many
def test_kills_while_lots_are_used(tmp_path: Path, kills: int, chance: random.Random) -> None:
    lots = 4 * kills
    assert both(tmp_path, lots) == [None, None]
    said: dict[str, list[str]] = {"server": [], "client": []}
    for attempt in range(kills):
        server, client = _started(tmp_path, answering_server, asking_client)
        rest = chance.randrange(1, 5)
        for word in client.words():
            said["client"].append(word)
            rest -= 1
            if not rest:
                break
        time.sleep(chance.random() * 0.02)
        both_ends = [("server", server), ("client", client)]
        for who, party in both_ends if attempt % 2 else both_ends[::-1]:
            said[who] += party.kill()
            time.sleep(0.1)  # the other goes on without it
    assert set(said["client"]) - {word for word in said["client"] if word.startswith("took")} <= {"right"}
    took = {party: [word for word in words if word.startswith("took")] for party, words in said.items()}
    assert "right" in said["client"] and took["server"], "nothing was asked"
    for who, names in took.items():
        assert len(set(names)) == len(names), f"the {who} used a lot twice"
    # The server takes nothing that the client has not taken: it is named by it.
    assert set(took["server"]) <= set(took["client"])
    program = small_program()
    ours = LotPool(tmp_path / "client", "client", program.outline())
    theirs = LotPool(server_pool(tmp_path), "server", program)
    # Nothing is lost but what was taken; a word may be lost between the mark and the pipe, one a kill.
    for pool, names in ((ours, took["client"]), (theirs, took["server"])):
        assert lots - len(names) - kills <= pool.left() <= lots - len(names)
    steps = schedule(program, ours.number_format, dealt=False)
    for name in ours.names():
        infer(steps, ours.take(name), theirs.take(name))
    for pool in (ours, theirs):
        pool.close()


def _started(folder: Path, server_part: Part, client_part: Part) -> tuple[Killable, Killable]:
    (port,) = free_ports("127.0.0.1", 1)
    server = Killable(server_part, port, folder / "server")
    assert next(server.words()) == "ready"
    return server, Killable(client_part, port, folder / "client")


def _units_of_both(folder: Path) -> list[bytes]:
    """Tags of the first units, which both parties have."""
    ours = Unfinished.find(folder / "client")
    theirs = [work for path in (folder / "server").glob("*") if (work := Unfinished.find(path)) is not None]
    pairs = zip(ours.tags(), theirs[0].tags(), strict=False) if ours and theirs else ()
    return [one for one, other in pairs if one == other]


def _added(folder: Path) -> bool:
    """Whether the server has the lots in its pool."""
    return (folder / "server").exists() and bool(pools_in(folder / "server", "server", MADE))
