"""Sessions without a dealer in this process: real transfers over a socket, and products in the clear.

`InTheOpen` stands in for products under encryption, whose shares are random all the same. The real ones are tested in
`crypto/test_homomorphic.py`, and between processes in `test_two_party.py`.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.client import ClientMaterial
from deepshare.private.engines.gateshare.crypto.hinted import HEAD_BYTES
from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted, Messages
from deepshare.private.engines.gateshare.crypto.limb_matmul import ring_weight
from deepshare.private.engines.gateshare.crypto.ot import _HEAD_BYTES
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, LotBatch, Piece
from deepshare.private.engines.gateshare.preprocessing.together import LotMaker, new_lots
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.step import Making
from deepshare.private.ir.program import Program
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import _FRAMES, Duplex
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
    """A duplex that keeps what it sends.

    Attributes:
        said: Names of messages and what is in them.
        kinds: By the function that sent it, and the kind of a frame of encryption, what is behind its head.
    """

    def __init__(self, channel: Channel, step: int) -> None:
        super().__init__(channel, step)
        self.said: list[tuple[str, bytes]] = []
        self.kinds: dict[str, bytearray] = defaultdict(bytearray)

    def put(self, name: str, content: bytes) -> None:
        self.said.append((name, content))
        if name != _FRAMES:
            self.kinds[name] += content
        super().put(name, content)

    def send(self, step: int, *parts: Any) -> None:
        super().send(step, *parts)
        code, content = sys._getframe(1).f_code, self.said[-1][1]
        kind, head = f"{Path(code.co_filename).stem} {code.co_name}", 0
        if kind == "hinted send":  # of every frame of encryption
            kind, head = f"{kind} {int.from_bytes(content[:4], 'little')}", HEAD_BYTES
        elif kind == "ot _matrix":
            head = _HEAD_BYTES
        self.kinds[kind] += content[head:]


class TwoPartyTrial(Trial):
    """A session without a dealer.

    Attributes:
        said: By party, all that it said while the last lot was made, products aside.
        made: By party, the bytes of that.
        kinds: By party and kind of message, all that it ever said.
        openings: What the client sent before the images of the last run.
        off: By linear step, what the products of the last run were off by.
    """

    said: dict[Holder, list[bytes]]
    made: dict[Holder, int]
    openings: dict[Piece, Tensor]

    def __init__(self, program: Program, number_format: NumberFormat | None = None) -> None:
        super().__init__(program, number_format, dealt=False)
        self.kinds: dict[tuple[Holder, str], bytearray] = defaultdict(bytearray)
        self.off: dict[int, Tensor] = {}

    def run(self, images: Tensor) -> Run:
        """Make lots for a batch and run it."""
        for_server, material, mine = self.prepared(len(images))
        return self.online(images, for_server.parts, material, mine)

    def prepared(self, images: int) -> tuple[LotBatch, ClientMaterial, dict[int, Tensor]]:
        """The server's half of lots, and what the client does with its own: its shares of all results are the last."""
        for_server, for_client = self.made_lots(images)
        self.off = self._off(for_server, for_client)
        materials, seen = [], []
        for lot, _ in for_client.parts:
            materials.append(self.client.preprocess(lot, fresh_seed()))
            seen.append(dict(self.public.seen))
        mine = {number: torch.cat([one[number] for one in seen]) for number in seen[0]}
        material = ClientMaterial.concat(materials)
        self.openings = dict(material.openings)
        return for_server, material, mine

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
            for kind, data in maker._duplex.kinds.items():
                self.kinds[party, kind] += data
            return lots, [content for name, content in maker._duplex.said if name not in (OPEN, "unit", "units")]

        ends = well(at_both_ends(lambda channel: make("server", channel), lambda channel: make("client", channel)))
        (for_server, by_server), (for_client, by_client) = ends.results
        self.said = {"server": by_server, "client": by_client}
        self.made = {party: sum(map(len, said)) for party, said in self.said.items()}
        return for_server, for_client

    def _off(self, for_server: LotBatch, for_client: LotBatch) -> dict[int, Tensor]:
        """Both shares of each product together, minus what it should be."""
        nobody: Any = None
        at = Making(
            party="client",
            steps=self.public.steps,
            lot=for_client,
            transfers=nobody,
            scalars=nobody,
            hinted=nobody,
            encrypted=nobody,
        )
        off = {}
        for step in self.schedule.steps:
            if isinstance(step, LinearStep):
                shares = [lots.share("product", step.number, step.shape) for lots in (for_server, for_client)]
                off[step.number] = shares[0] + shares[1]
                for source, term in zip(step.inputs, step.terms, strict=True):
                    W = term.multiply(term.weight(), ring_weight)
                    off[step.number] = off[step.number] - W(step.own_mask(source, term, at))
                assert int(off[step.number].abs().max()) <= 1
        return off
