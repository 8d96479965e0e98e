"""Lots that the two parties make together, without a dealer: transfers for gates, encryption for linear layers."""

import os
from typing import Self

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot
from deepshare.private.engines.gateshare.preprocessing.dealer import LotStock
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import Making
from deepshare.private.engines.gateshare.protocols.transfers import Transfers
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex

_START = 0
_ID = "lot"


class LotMaker:
    """One party's part of making lots with the other.

    Args:
        schedule: With its weights for the server, of an outline for the client.
        party: This party.
        duplex: Messages to the other.
        transfers: Oblivious transfers with the other.
        encrypted: Products under encryption with the other.
    """

    def __init__(
        self, schedule: Schedule, party: Holder, duplex: Duplex, transfers: Transfers, encrypted: Encrypted
    ) -> None:
        self._schedule, self._party, self._duplex = schedule, party, duplex
        self._transfers, self._encrypted = transfers, encrypted

    @classmethod
    def begin(cls, schedule: Schedule, party: Holder, channel: Channel) -> Self:
        """Do what serves all lots: base transfers, and keys for encryption.

        Raises:
            EngineError: A library is missing, or the other party sent something else.
        """
        with Duplex(channel, _START) as duplex:
            transfers = Transfers.begin(duplex, _START, party)
            return cls(schedule, party, duplex, transfers, Encrypted.begin(duplex, party))

    def make(self, images: int) -> Lot:
        """Make this party's half of a lot for some images."""
        with self._duplex as duplex:
            name = os.urandom(ID_BYTES)
            if self._party == "server":
                duplex.put(_ID, name)
            elif len(name := duplex.get(_ID)) != ID_BYTES:
                raise EngineError(f"the server's lot has a name of {len(name)} bytes: start both parties again")
            lot = Lot(name, fresh_seed(), images)
            at = Making(
                party=self._party,
                steps=self._schedule.steps,
                lot=lot,
                transfers=self._transfers,
                encrypted=self._encrypted,
            )
            for step in self._schedule.steps:
                step.make(at)
        return lot


class ClientLotsTogether:
    """The client asks the server to make lots with it; see `ClientLots`."""

    def __init__(self, maker: LotMaker, server: Channel) -> None:
        self._maker, self._server, self._stock = maker, server, LotStock()

    def check(self, images: int) -> None:
        """As many are made as are asked for."""

    def get(self, images: int) -> list[Lot]:
        """One lot for all."""
        self._server.send_message({"deal": images})
        lot = self._maker.make(images)
        self._stock.add(lot)
        return [self._stock.take(lot.id)]

    def discard(self, name: bytes) -> None:
        """It is spent, and nobody counts."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Nobody dealt it."""
        return 0


class ServerLotsTogether(LotStock):
    """The server's halves; see `ServerLots`."""

    def __init__(self, maker: LotMaker) -> None:
        super().__init__()
        self._maker = maker

    def expect(self, images: int) -> None:
        """Make a lot with the client."""
        self.add(self._maker.make(images))

    def dealt_bytes(self, lot: Lot) -> int:
        """Nobody dealt it."""
        return 0
