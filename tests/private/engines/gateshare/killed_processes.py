"""Processes of two parties that make lots or use them, for tests that kill them.

They say what they do: "unit" when a unit of lots is on the disk, "took ID" when a lot is marked, before any of it is
used, and the client "right" for a right answer, and "done" when all is made.
"""

import multiprocessing
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn

from deepshare import plan, share
from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import making
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.making import ServerMaking, make_pool
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.preprocessing.unfinished import Unfinished
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import Server, connected
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.runtime.engine import find_engine
from deepshare.private.transport.channel import Channel

SIZE = (3, 6, 6)
IMAGES = 3

Say = Callable[[str], None]
Part = Callable[[Say, int, Path], None]


def small_program() -> Program:
    """The same network in every process."""
    torch.manual_seed(8)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    return translate(share(model, plan(model, SIZE, budget=36), start="uniform").eval(), SIZE)


def making_server(say: Say, port: int, pools: Path) -> None:
    """Make lots with one client."""
    _say_units(say)
    with socket.create_server(("127.0.0.1", port)) as listener, torch.no_grad():
        say("ready")
        channel = Channel(listener.accept()[0], "client")
        server = ServerMaking(small_program(), pools, "client", channel, left=100)
        while not (request := channel.receive_message()).get("end"):
            server.answer(request)


def making_client(say: Say, port: int, pool: Path) -> None:
    """Make lots with the server."""
    _say_units(say)
    channel = Channel(socket.create_connection(("127.0.0.1", port)), "server")
    say("connected")
    make_pool(small_program().outline(), pool, channel, IMAGES, lambda share, layer: None)
    say("done")


def answering_server(say: Say, port: int, pools: Path) -> None:
    """Answer with lots that were made."""
    _say_lots(say)
    about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple("abcde"))
    service = ModelServer(
        engine=find_engine("gateshare-2pc"),
        options={"lots": "pool"},
        networks={"network": Network(small_program(), about)},
        tls=None,
        pools=[pools],
        max_clients=4,
        max_each=4,
    )
    listening = service.listen("127.0.0.1", port)
    say("ready")
    listening.serve_forever()


def asking_client(say: Say, port: int, pool: Path) -> None:
    """Ask one image after the other."""
    _say_lots(say)
    program = small_program()
    with connected(Server(address=f"127.0.0.1:{port}", tls=None, pool=pool, engine="gateshare-2pc")) as client:
        while True:
            images = torch.randn(1, *SIZE)
            answer = client.ask(images).logits
            say("right" if float((answer - program.evaluate(images)).abs().max()) < 0.05 else "wrong")


def _say_units(say: Say) -> None:
    class Spoken(Unfinished):
        def save(self, tag: bytes, arrays: together.Arrays) -> None:
            super().save(tag, arrays)
            say("unit")

    setattr(making, "Unfinished", Spoken)  # noqa: B010 - mypy sees no attribute there


def _say_lots(say: Say) -> None:
    take_all = LotPool.take_all

    def spoken(pool: LotPool, names: Sequence[bytes]) -> list[Lot]:
        lots = take_all(pool, names)
        for name in names:
            say(f"took {name.hex()}")
        return lots

    setattr(LotPool, "take_all", spoken)  # noqa: B010 - mypy sees a method there


class Killable:
    """A party's process, and what it says."""

    def __init__(self, part: Part, port: int, pool: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._said, saying = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(part, saying, port, pool), daemon=True)
        self._process.start()
        saying.close()

    def words(self) -> Iterator[str]:
        """What it says until it ends."""
        with suppress(EOFError, ConnectionError):
            while True:
                yield str(self._said.recv())

    def kill(self) -> list[str]:
        """Kill it as with kill -9; returns what it had said that nobody has heard."""
        self._process.kill()
        self._process.join()
        return list(self.words())

    def wait(self) -> list[str]:
        """Wait for its end; returns what it said."""
        words = list(self.words())
        self._process.join()
        return words


def _run(part: Part, saying: Connection, port: int, pool: Path) -> None:
    torch.set_num_threads(1)
    # The other party is killed.
    with suppress(EngineError, OSError):
        part(saying.send, port, pool)
