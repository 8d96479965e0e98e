"""Lots that two parties make, over real sockets and with real ciphertexts; and clients that deviate meanwhile."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare import private
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import host, making
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.making import MOST_BEGUN, MOST_POOLS
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, MASKED_WEIGHTS, LotPool
from deepshare.private.engines.gateshare.preprocessing.stock import levels
from deepshare.private.engines.gateshare.preprocessing.unfinished import FOLDER
from deepshare.private.engines.gateshare.protocols.schedule import parse_masked_weights
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import Server, ask_when_free
from deepshare.private.remote.guests import processes
from deepshare.private.remote.prepare import make_lots
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport import duplex
from deepshare.private.transport.channel import Channel, PeerBusyError, PeerError
from deepshare.private.transport.tls import tls_of
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.running import Running, greet, wait_for_workers

MADE = "gateshare-2pc"
pytestmark = pytest.mark.skipif(find_spec("spu") is None or find_spec("nacl") is None, reason="no engine gateshare-2pc")


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["127.0.0.1"], clients=2)
    return folder


@pytest.fixture
def running(program: Program, keys: Path, tmp_path: Path) -> Iterator[Running]:
    service = Running(program, keys, engine=MADE, pools=[tmp_path / "server"], max_each=2)
    yield service
    service.stop()
    wait_for_workers(0)


class Deviant:
    """A client that asks for lots by hand."""

    def __init__(self, running: Running, keys: Path, program: Program, number: int = 1) -> None:
        self.channel: Channel = greet(running.address, tls_of(keys / f"client-{number}"))
        self.digest = outline.digest(program)

    def begin(self, images: int = 1) -> dict[str, Any]:
        """Begin a new pool, and hear the server's answer."""
        self.channel.send_message({"prepare": images, "outline": self.digest, "session": "", "batch": ""})
        return self.channel.receive_message()


def make(
    running: Running,
    keys: Path,
    pool: Path,
    number: int = 2,
    images: int = 1,
    on_progress: Callable[[float, str, float], None] = lambda *_: None,
) -> int:
    """A genuine client."""
    asked = Server(address=running.address, tls=tls_of(keys / f"client-{number}"), engine=MADE)
    made, distance = make_lots(asked, pool, images, on_progress)
    assert 0 < distance < 2.0**-10
    return made


def ask(running: Running, keys: Path, pool: Path, program: Program, number: int = 2) -> None:
    images = torch.randn(1, *SIZE)
    asked = Server(address=running.address, tls=tls_of(keys / f"client-{number}"), engine=MADE, pool=pool)
    logits = ask_when_free(asked, lambda client: client.ask(images)).logits  # its pool may be seen a little later
    assert float((logits - program.evaluate(images)).abs().max()) < 0.05


def test_a_silent_client_gives_its_turn_to_who_waits(
    running: Running, keys: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Deviant(running, keys, program)
    silent.begin()
    waiting = Deviant(running, keys, program, 2)
    with pytest.raises(PeerBusyError, match="lots are being made with another client: ask again later"):
        waiting.begin()
    monkeypatch.setattr(processes, "SILENT_SECONDS", 1.0)
    assert make(running, keys, tmp_path / "client") == 1
    ask(running, keys, tmp_path / "client", program)
    with pytest.raises(PeerBusyError, match="others wait to make lots: what both have is kept; ask again later"):
        silent.channel.receive(0, 1)
    running.wait_for("others wait to make lots")


def test_a_turn_whose_thread_does_not_start_is_given_back(
    running: Running, keys: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(running.listening._door, "_start", full)
    with pytest.raises((ConnectionError, EngineError)):
        Deviant(running, keys, program).begin()
    monkeypatch.undo()
    assert make(running, keys, tmp_path / "client") == 1


def test_nobody_is_cut_off_while_nobody_waits(
    running: Running, keys: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(processes, "TURN_SECONDS", 0.0)
    assert make(running, keys, tmp_path / "client", images=2) == 2
    running.wait_for("2 lots were made")
    ask(running, keys, tmp_path / "client", program)


def test_two_genuine_clients_take_turns_and_go_on_where_they_were(
    running: Running, keys: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TURN_SECONDS", 1.0)
    made: dict[int, int] = {}

    def one(number: int) -> None:
        made[number] = make(running, keys, tmp_path / f"client-{number}", number, images=2)

    threads = [threading.Thread(target=one, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    running.wait_for("others wait to make lots")
    monkeypatch.setattr(processes, "TURN_SECONDS", 60.0)
    for thread in threads:
        thread.join(120)
    assert made == {1: 2, 2: 2}
    for number in (1, 2):
        ask(running, keys, tmp_path / f"client-{number}", program, number)


def test_the_same_call_goes_on_to_the_same_number(
    running: Running, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(share: float, *_: object) -> None:
        if share > 0.7:
            raise KeyboardInterrupt

    def lots() -> int:
        (level,) = levels(tmp_path / "client")
        return level.dealt

    monkeypatch.setattr(making, "BATCH", 1)
    with pytest.raises(KeyboardInterrupt):
        make(running, keys, tmp_path / "client", images=3, on_progress=cut)
    assert lots() == 2
    assert make(running, keys, tmp_path / "client", images=3) == lots() == 3
    assert not (tmp_path / "client" / making.GOAL).exists()
    with pytest.raises(KeyboardInterrupt):
        make(running, keys, tmp_path / "client", images=3, on_progress=cut)
    # Another number is another wish, and what is unfinished is the first of it.
    assert lots() == 5 and make(running, keys, tmp_path / "client", images=1) == 1 and lots() == 6


def test_every_connection_after_the_first_asks_as_well(
    running: Running, keys: Path, program: Program, tmp_path: Path
) -> None:
    pool, images = tmp_path / "client", torch.randn(1, *SIZE)
    make(running, keys, pool, images=3)
    for number in range(3):
        with private.connect(running.address, pool=pool, tls=keys / "client-2", ahead=False) as remote:
            assert remote.classify(images) == [str(int(program.evaluate(images).argmax()))]
        if number == 1:
            assert not (pool / MASKED_WEIGHTS).exists()
            with closing(LotPool(pool, "client", program)) as earlier:
                earlier.keep_masked_weights(b"")  # as earlier releases left it


def test_a_file_without_masked_weights_is_read(program: Program) -> None:
    steps = schedule(program, calibrate(program), dealt=False)
    assert parse_masked_weights(bytearray(), steps) == {}


def test_a_client_says_why_it_refuses_what_the_server_sent(
    running: Running, keys: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(running, keys, tmp_path / "client")
    refused = r"frame \d+ from the server for step 0 \(preprocessing\) has \d+ bytes, not 99"
    with monkeypatch.context() as patch:
        patch.setattr(duplex, "LARGEST", 99)
        with pytest.raises(EngineError, match=refused):
            make(running, keys, tmp_path / "client")
    assert re.search(refused, running.wait_for("lots in the making: the client refused: frame"))


def test_lots_of_another_certificate_are_refused(
    running: Running, keys: Path, program: Program, tmp_path: Path
) -> None:
    """Whoever has stolen a pool cannot use it without the key."""
    make(running, keys, tmp_path / "client")
    with pytest.raises(PeerError, match="these lots belong to another certificate: ask with your own pool"):
        ask(running, keys, tmp_path / "client", program, 1)
    ask(running, keys, tmp_path / "client", program)


def test_images_are_limited_within_a_connection_and_useless_lots_count(
    running: Running, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that calls every lot useless gets no more than others."""
    monkeypatch.setattr(host, "MOST_IMAGES", 3)
    monkeypatch.setattr(making, "usable_lots", lambda *_: [])
    with pytest.raises(PeerError, match="0 more images may be made for this client: ask for no more"):
        make(running, keys, tmp_path / "client")
    (level,) = levels(tmp_path / "server")
    assert (level.left, level.dealt, level.stock.unusable) == (0, 0, 3)
    deadline = time.monotonic() + 30
    while running.listening.sessions:  # its process is ending
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(PeerError, match="3 images of 3 were made for this client: it gets no more"):
        make(running, keys, tmp_path / "client")


def test_pools_that_are_only_begun_do_not_pile_up(
    running: Running, keys: Path, program: Program, tmp_path: Path
) -> None:
    for _ in range(MOST_BEGUN + 2):
        deviant = Deviant(running, keys, program)
        deadline = time.monotonic() + 30
        while True:
            try:
                deviant.begin()
                break
            except PeerBusyError:  # its last one is still ending
                assert time.monotonic() < deadline
                deviant = Deviant(running, keys, program)
                time.sleep(0.05)
        deviant.channel.close()
    assert len(list((tmp_path / "server").glob(f"*/{FOLDER}"))) == MOST_BEGUN
    for number in range(MOST_POOLS):
        folder = tmp_path / "server" / f"DeepShare_client-2-{number:032x}"
        folder.mkdir()
        (folder / ABOUT).write_text("{}")
    with pytest.raises(PeerError, match=f"this client has {MOST_POOLS} pools here: go on with one of them"):
        make(running, keys, tmp_path / "client")
