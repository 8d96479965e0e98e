"""A process that serves or asks with lots that two parties made; for tests that kill it.

    python -m tests.private.engines.gateshare.asking_process PARTY PORT POOL

It prints every lot that it takes, before anything of it is used, and the client a line for each right answer.
"""

import sys
from pathlib import Path

import torch

from deepshare.data.images import About
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.remote.client import Server, connected
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.runtime.engine import find_engine
from tests.private.engines.gateshare.making_process import SIZE, say, small_program

_take = LotPool.take


def _spoken(pool: LotPool, name: bytes) -> Lot:
    lot = _take(pool, name)
    say(f"took {name.hex()}")
    return lot


def main() -> None:
    party, port, pool = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    setattr(LotPool, "take", _spoken)  # noqa: B010 - mypy sees a method there
    program = small_program()
    if party == "server":
        about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple("abcde"))
        service = ModelServer(
            engine=find_engine("gateshare-2pc"),
            options={"lots": "pool"},
            networks={"network": Network(program, about)},
            tls=None,
            pools=[pool],
            max_clients=4,
            max_each=4,
        )
        listening = service.listen("127.0.0.1", port)
        say("ready")
        listening.serve_forever()
    with connected(Server(address=f"127.0.0.1:{port}", tls=None, pool=pool, engine="gateshare-2pc")) as client:
        while True:
            images = torch.randn(1, *SIZE)
            answer = client.ask(images).logits
            say("right" if float((answer - program.evaluate(images)).abs().max()) < 0.05 else "wrong")


if __name__ == "__main__":
    main()
