"""A process that multiplies under encryption with another, and may damage what it sends; for tests.

    python -m tests.private.engines.gateshare.crypto.encrypting_process PARTY FD DAMAGE

FD is its end of a socket pair. DAMAGE is none, short, long or changed, and meets the first ciphertext of the product
after the trial. It prints its share, or the error and its kind.
"""

import socket
import sys
from typing import Any

import torch

from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex

COUNT = 20_000
LARGE = 10_000


def factors() -> dict[str, torch.Tensor]:
    """The same in every process."""
    torch.manual_seed(3)
    return {
        "client": torch.randint(-(2**63), 2**63 - 1, (COUNT,)),
        "server": torch.randint(-(2**63), 2**63 - 1, (COUNT,)),
    }


class Damaging(Duplex):
    """Damages the first large message once it is told to."""

    damage = "none"

    def put(self, name: str, content: bytes) -> None:
        if self.damage != "none" and len(content) > LARGE:
            half = len(content) // 2
            content = {
                "short": content[:half],
                "long": content + content[:half],
                "changed": content[:half] + bytes(64) + content[half + 64 :],
            }[self.damage]
            self.damage = "none"
        super().put(name, content)


def main() -> None:
    party: Any = sys.argv[1]
    channel = Channel(socket.socket(fileno=int(sys.argv[2])), "server" if party == "client" else "client")
    duplex = Damaging(channel, 0)
    try:
        with duplex:
            encrypted = Encrypted.begin(duplex, party)
            duplex.damage = sys.argv[3]
            share = encrypted.products(factors()[party])
        print("share", share.numpy().tobytes().hex())  # noqa: T201
    except Exception as error:
        print(type(error).__name__, error)  # noqa: T201
    finally:
        channel.close()


if __name__ == "__main__":
    main()
