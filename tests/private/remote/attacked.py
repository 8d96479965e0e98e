"""A server's process for attacks: `attacked.py FOLDER` makes pools and keys there, and serves until it is killed.

SIGUSR1 takes all of its descriptors away, as if something else in the process had them, and SIGUSR2 gives them back.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.remote.guests.journal import start_logging
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import find_engine
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.remote.running import POOL, about, server

SIZE = (3, 8, 8)


def network() -> Program:
    torch.manual_seed(51)
    return translate(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)), SIZE)


def deal(folder: Path, images: int = 4, clients: int = 2) -> Program:
    """Pools and keys of two clients."""
    program = network()
    write_pools(folder, program.outline(), calibrate(program), images, lambda *_: None, clients)
    make_keys(folder / "keys", ["localhost", "127.0.0.1"], clients)
    return program


def keys(folder: Path, number: int = 1) -> Tls:
    return tls_of(folder / "keys" / f"client-{number}")


def genuine(address: str, folder: Path, program: Program, number: int = 2) -> float:
    """A genuine client asks; returns its seconds."""
    images, started = torch.randn(1, *SIZE), time.monotonic()
    with connected(server(address, folder / f"client-{number}", keys(folder, number))) as client:
        logits = client.ask(images).logits
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-4
    return time.monotonic() - started


def lose_descriptors() -> None:
    taken: list[int] = []

    def take(*_: object) -> None:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    def give_back(*_: object) -> None:
        while taken:
            os.close(taken.pop())

    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, give_back)


def main(folder: Path) -> None:
    lose_descriptors()
    program = deal(folder)
    start_logging("info", as_json=False)
    service = ModelServer(
        engine=find_engine("gateshare"),
        options=POOL,
        networks={"network": Network(program, about(program))},
        tls=tls_of(folder / "keys" / "server"),
        pools=[folder / "server"],
    )
    with service.listen("127.0.0.1", 0) as listening:
        sys.stdout.write(f"{listening.address}\n")
        sys.stdout.flush()
        listening.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
