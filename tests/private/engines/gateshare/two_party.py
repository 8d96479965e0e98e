"""Sessions without a dealer in this process: real transfers over a socket, and products in the clear.

`InTheOpen` stands in for products under encryption, whose shares are random all the same. The real ones are tested in
`crypto/test_homomorphic.py`, and between processes in `test_two_party.py`.
"""

import os
from typing import Any

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.client import ClientMaterial
from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted, Messages
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, LotBatch
from deepshare.private.engines.gateshare.preprocessing.together import LotMaker, new_lots
from deepshare.private.ir.program import Program
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends, well
from tests.private.engines.gateshare.trial import Run, Trial

PARTIES: tuple[Holder, Holder] = ("server", "client")
OPEN = "in the open"


class InTheOpen(Encrypted):
    """Products that the client computes from the server's matrix."""

    def __init__(self, duplex: Messages, party: Any) -> None:
        self._duplex, self._rank = duplex, PARTIES.index(party)

    @classmethod
    def begin(cls, duplex: Messages, party: Any) -> "InTheOpen":
        return cls(duplex, party)

    def products(self, own: Tensor) -> Tensor:
        assert own.ndim == 1
        if self._rank == 0:
            share = torch.randint(-(2**63), 2**63 - 1, own.shape)
            self._duplex.put(OPEN, own.numpy().tobytes() + share.numpy().tobytes())
            return share
        y, theirs = torch.frombuffer(bytearray(self._duplex.get(OPEN)), dtype=torch.int64).view(2, -1)
        return own * y - theirs


class Told(Duplex):
    """A duplex that keeps what it sends."""

    def __init__(self, channel: Channel, step: int) -> None:
        super().__init__(channel, step)
        self.said: list[tuple[str, bytes]] = []

    def put(self, name: str, content: bytes) -> None:
        self.said.append((name, content))
        super().put(name, content)


class TwoPartyTrial(Trial):
    """A session without a dealer.

    Attributes:
        said: By party, all that it said while the last lot was made, products aside.
        made: By party, the bytes of that.
    """

    said: dict[Holder, list[bytes]]
    made: dict[Holder, int]

    def __init__(self, program: Program, number_format: NumberFormat | None = None) -> None:
        super().__init__(program, number_format, dealt=False)

    def run(self, images: Tensor) -> Run:
        """Make lots for a batch and run it."""
        for_server, for_client = self.made_lots(len(images))
        materials, seen = [], []
        for lot, _ in for_client.parts:
            materials.append(self.client.preprocess(lot, fresh_seed()))
            seen.append(dict(self.public.seen))
        mine = {number: torch.cat([one[number] for one in seen]) for number in seen[0]}
        return self.online(images, for_server.parts, ClientMaterial.concat(materials), mine)

    def made_lots(self, images: int) -> tuple[LotBatch, LotBatch]:
        """Both halves of lots for one image each."""
        batch = os.urandom(ID_BYTES)

        def make(party: Holder, channel: Channel) -> tuple[LotBatch, list[bytes]]:
            maker = LotMaker.begin(self.schedule if party == "server" else self.public, party, channel)
            assert isinstance(maker._duplex, Told)
            maker._duplex.said.clear()
            lots = new_lots(batch, [fresh_seed() for _ in range(images)])
            maker.make(lots)
            # The channel is free for frames again.
            channel.send(7, batch)
            assert channel.receive(7, ID_BYTES).tobytes() == batch
            return lots, [content for name, content in maker._duplex.said if name not in (OPEN, "unit", "units")]

        ends = well(at_both_ends(lambda channel: make("server", channel), lambda channel: make("client", channel)))
        (for_server, by_server), (for_client, by_client) = ends.results
        self.said = {"server": by_server, "client": by_client}
        self.made = {party: sum(map(len, said)) for party, said in self.said.items()}
        return for_server, for_client
