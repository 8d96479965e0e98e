"""A process that makes lots with another one, with products in the clear; for tests that kill it.

    python -m tests.private.engines.gateshare.making_process PARTY PORT POOL

After each unit it prints a line.
"""

import socket
import sys
from pathlib import Path

import torch
from torch import nn

from deepshare import plan, share
from deepshare.private.engines.gateshare import making
from deepshare.private.engines.gateshare.making import ServerMaking, make_pool
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.unfinished import Unfinished
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.two_party import InTheOpen

SIZE = (3, 6, 6)


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


def say(word: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Spoken(Unfinished):
    """Says when a unit is on the disk."""

    def save(self, tag: bytes, arrays: together.Arrays) -> None:
        super().save(tag, arrays)
        say("unit")


def serve(program: Program, channel: Channel, pools: Path) -> None:
    """Answer until the client ends."""
    server = ServerMaking(program, pools, "client", channel, left=100)
    while not (request := channel.receive_message()).get("end"):
        server.answer(request)


def main() -> None:
    party, port, pool = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    setattr(together, "Encrypted", InTheOpen)  # noqa: B010 - mypy sees no attribute there
    setattr(making, "Unfinished", Spoken)  # noqa: B010
    program = small_program()
    torch.set_grad_enabled(False)
    if party == "server":
        with socket.create_server(("127.0.0.1", port)) as listener:
            say("ready")
            serve(program, Channel(listener.accept()[0], "client"), pool)
    else:
        channel = Channel(socket.create_connection(("127.0.0.1", port)), "server")
        make_pool(program.outline(), pool, channel, 3, lambda share, layer: None)
        say("done")


if __name__ == "__main__":
    main()
