"""Two networks in one server: whatever happens to one, clients of the other are answered."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from deepshare.private.engines.gateshare.crypto.parallel import CORES
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.marks import FILE
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.running import Running, greet, server, wish

SECONDS = 10.0


def other() -> Program:
    torch.manual_seed(52)
    return translate(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6)), SIZE)


class Two:
    """A server of two networks, each with a pool."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, {"one": network(), "two": other()}
        for name, program in self.programs.items():
            write_pools(folder / name, program.outline(), calibrate(program), 8, lambda *_: None, 2)
        self.running = Running(self.programs, pools=[folder / name / "server" for name in self.programs])

    def ask(self, name: str, client: int) -> torch.Tensor:
        pool = self.folder / name / f"client-{client}"
        with connected(server(self.running.address, pool, network=name)) as one:
            return one.ask(torch.randn(1, *SIZE)).logits

    def seconds(self, name: str, client: int) -> float:
        """How long an answer takes, at the most."""
        started, answered = time.monotonic(), threading.Event()

        def ask() -> None:
            with suppress(Exception):
                self.ask(name, client)
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        answered.wait(SECONDS)
        return time.monotonic() - started


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    both = Two(tmp_path)
    yield both
    both.running.stop()


@pytest.mark.parametrize("held", ["one", "two"])
def test_silent_clients_of_one_network_hold_up_neither(two: Two, held: str) -> None:
    with ExitStack() as stack:
        for _ in range(CORES):
            channel = greet(two.running.address, network=held)
            stack.callback(channel.close)
            channel.send_message(wish(two.programs[held], two.folder / held / "client-1"))
            assert "session" in channel.receive_message()
        for name in ("one", "two"):
            assert two.seconds(name, 2) < SECONDS


def test_marks_that_another_process_writes_hold_up_their_own_network_alone(two: Two) -> None:
    waiting = [threading.Thread(target=two.seconds, args=("one", 1 + number % 2)) for number in range(CORES + 1)]
    with closing(sqlite3.connect(two.folder / "one/server" / FILE, isolation_level=None)) as base:
        base.execute("BEGIN IMMEDIATE")
        for thread in waiting:
            thread.start()
            time.sleep(0.3)
        assert two.seconds("two", 1) < 3
        channel = greet(two.running.address, network="one")  # and a reader is no writer
        channel.send_message(wish(two.programs["one"], two.folder / "one/client-2"))
        assert "session" in channel.receive_message()
        channel.close()
        base.execute("ROLLBACK")
    for thread in waiting:
        thread.join()
    assert two.seconds("one", 2) < 3
