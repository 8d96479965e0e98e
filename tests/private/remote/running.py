"""A server in this process, clients that speak to it by hand, and the processes of its parties."""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepshare.data.images import About
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import Server
from deepshare.private.remote.guests.journal import LOGGER
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.remote.session import LONGEST_OFFER, PROTOCOL
from deepshare.private.runtime.engine import find_engine
from deepshare.private.transport.channel import Channel, reach
from deepshare.private.transport.tls import Tls, tls_of

SIZE = (3, 16, 16)
POOL = {"dealer": "pool"}


def about(program: Program) -> About:
    """A description that fits a network of three channels."""
    count = program.operations[-1].shape[0]
    return About(size=program.input_size, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(count))))


class Running(logging.Handler):
    """A server in this process, with what it logged."""

    def __init__(
        self,
        program: Program | Mapping[str, Program],
        keys: Path | None = None,
        *,
        engine: str = "gateshare",
        pools: Sequence[Path] = (),
        max_clients: int = 64,
        max_each: int = 16,
        port: int = 0,
    ) -> None:
        super().__init__()
        self.said: list[str] = []
        self.levels: dict[str, list[str]] = {}
        LOGGER.addHandler(self)
        LOGGER.setLevel("DEBUG")
        chosen = find_engine(engine)
        networks = program if isinstance(program, Mapping) else {"network": program}
        service = ModelServer(
            engine=chosen,
            options=chosen.preprocessing.options if pools and chosen.preprocessing else {},
            networks={name: Network(one, about(one)) for name, one in networks.items()},
            tls=None if keys is None else tls_of(keys / "server"),
            pools=pools,
            max_clients=max_clients,
            max_each=max_each,
        )
        self.listening = service.listen("127.0.0.1", port)
        self.address = self.listening.address
        self.thread = threading.Thread(target=self.listening.serve_forever, daemon=True)
        self.thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.levels.setdefault(record.getMessage(), []).append(record.levelname)

    def stop(self) -> None:
        self.listening.shutdown()
        self.thread.join(30)
        LOGGER.removeHandler(self)

    def wait_for(self, words: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.said:
                if words in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"{words!r} not in {self.said}")


def server(
    address: str,
    pool: Path | None = None,
    tls: Tls | None = None,
    engine: str | None = None,
    network: str | None = None,
) -> Server:
    return Server(
        address=address, tls=tls, pool=pool, engine=engine or ("gateshare" if pool else None), network=network
    )


def greet(address: str, tls: Tls | None = None, network: str | None = None) -> Channel:
    """Say hello by hand, and hear the offer."""
    channel = reach(address, "server", tls)
    channel.send_message({"protocol": PROTOCOL, "network": network})
    channel.receive_message(LONGEST_OFFER)
    return channel


def wish(program: Program, pool: Path, images: int = 1) -> dict[str, Any]:
    """A request of a client with a pool."""
    lots = LotPool(pool, "client", program)
    lots_fresh = lots.names()
    lots.close()
    names = [name.hex() for name in lots_fresh[: 2 * images]]
    digest = outline.digest(program)
    return {"images": images, "outline": digest, "session": lots.session.hex(), "lots": names}


def workers() -> list[int]:
    """Children of this process that are parties."""
    # With "-m": a server of forks may have the module's name among those that it has imported.
    command = ["pgrep", "-f", "-P", str(os.getpid()), "--", "-m deepshare.private.runtime.party"]
    listed = subprocess.run(command, capture_output=True)
    return [int(line) for line in listed.stdout.split()]


def wait_for_workers(count: int, seconds: float = 60) -> list[int]:
    deadline = time.monotonic() + seconds
    while len(found := workers()) != count:
        assert time.monotonic() < deadline, f"{len(found)} workers, not {count}"
        time.sleep(0.05)
    return found
