"""The dealer: correlated randomness for a network of which it knows the outline alone, and both parties' lots from it.

It deals in advance, into pools, or as the client asks.
"""

import os
from collections.abc import Sequence

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot
from deepshare.private.engines.gateshare.preprocessing.arrival import ArrivingPieces, LotSender, receive_arriving
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import Dealing
from deepshare.private.transport.channel import Channel


class LotDealer:
    """Deals for one session, that is for one set of weights, which it never sees.

    Args:
        schedule: Of an outline.
        secrets: Id and seed of a session that goes on; new ones without.

    Attributes:
        id: Of the session.
        seed: Of the masks that hide the weights; for the server.
    """

    def __init__(self, schedule: Schedule, secrets: tuple[bytes, bytes] | None = None) -> None:
        self.id, self.seed = secrets or (os.urandom(ID_BYTES), fresh_seed())
        self._schedule = schedule
        self._session = {step.number: step.dealer_session(self.seed) for step in schedule.steps}

    def deal(self, images: int) -> tuple[Lot, Lot]:
        """Deal a lot for some images: the server's half and the client's."""
        at = self._begin(images)
        for step in self._schedule.steps:
            step.deal(at)
        return at.server, at.client

    def deal_to(self, server: LotSender, client: LotSender, images: int) -> None:
        """Deal a lot for some images to both parties, each piece sent as soon as it is dealt."""
        at = self._begin(images)
        server.begin(at.server)
        client.begin(at.client)
        for step in self._schedule.steps:
            step.deal(at)
            server.step(step.number, at.server)
            client.step(step.number, at.client)

    def _begin(self, images: int) -> Dealing:
        name = os.urandom(ID_BYTES)
        server, client, own = (Lot(name, fresh_seed(), images) for _ in range(3))
        return Dealing(session=self._session, own=own, server=server, client=client)


class LotStock:
    """One party's lots in memory. A lot can be taken once; one that was taken before is refused."""

    def __init__(self) -> None:
        self._lots: dict[bytes, Lot] = {}
        self._spent: set[bytes] = set()

    def add(self, lot: Lot) -> None:
        """Put a lot in.

        Raises:
            EngineError: It was there before.
        """
        if lot.id in self._lots or lot.id in self._spent:
            raise EngineError(f"lot {lot.id.hex()} was dealt before: correlated randomness may be used once only")
        self._lots[lot.id] = lot

    def is_fresh(self, name: bytes) -> bool:
        """Whether a lot is there and was never taken."""
        return name in self._lots

    def take(self, name: bytes) -> Lot:
        """Take a lot out for good.

        Raises:
            EngineError: There is none of this id, or there is none any more.
        """
        if name in self._spent:
            raise EngineError(f"lot {name.hex()} is spent: correlated randomness may be used once only")
        if name not in self._lots:
            raise EngineError(f"there is no lot {name.hex()}: both parties need lots of one dealer")
        self._spent.add(name)
        return self._lots.pop(name)

    def take_all(self, names: Sequence[bytes]) -> list[Lot]:
        """Take lots out for good."""
        return [self.take(name) for name in names]


class ClientLotsFromDealer:
    """The client asks a dealer for lots, and tells the server that it does."""

    def __init__(self, schedule: Schedule, dealer: Channel, server: Channel) -> None:
        self._schedule, self._dealer, self._server, self._stock = schedule, dealer, server, LotStock()
        self._ordered: int | None = None
        self._arriving: ArrivingPieces | None = None

    def order(self, images: int) -> None:
        """Ask the dealer for the next lot, which it deals while the parties do other work, and sends when they read."""
        self._wait()
        self._dealer.send_message({"deal": images})
        self._ordered = images

    def end(self) -> None:
        """Tell the dealer that there will be no more."""
        self._wait()
        self._dealer.send_message({"end": True})

    def _wait(self) -> None:
        """Wait until the dealer has nothing more to send: a channel serves one thread at a time."""
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None  # keys of gigabytes

    def check(self, images: int) -> None:
        """The dealer deals as many as are asked for."""

    def get(self, images: int) -> list[Lot]:
        """One lot for all, whose pieces may be under way."""
        self._server.send_message({"deal": images})
        if self._ordered != images:
            self.order(images)
        self._ordered = None
        lot, self._arriving = receive_arriving(self._dealer, self._schedule, images, "client")
        self._stock.add(lot)
        return [self._stock.take(lot.id)]

    def discard(self, name: bytes) -> None:
        """It is spent, and nobody counts."""

    def dealt_bytes(self, lot: Lot) -> int:
        """The dealer counts them all."""
        return 0


class ServerLotsFromDealer(LotStock):
    """The dealer sends the server its halves of the lots that the client asks for."""

    def __init__(self, schedule: Schedule, dealer: Channel) -> None:
        super().__init__()
        self._schedule, self._dealer = schedule, dealer
        self._arriving: ArrivingPieces | None = None
        self._last: tuple[bytes, int] | None = None

    def expect(self, images: int) -> None:
        """Receive a lot from the dealer, whose pieces may be under way."""
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None
        # A client that wants as many images again had no use for any of the last lot, unless that is taken.
        if self._last is not None and self._last[1] == images and self.is_fresh(self._last[0]):
            self.take(self._last[0])
        lot, self._arriving = receive_arriving(self._dealer, self._schedule, images, "server")
        self.add(lot)
        self._last = lot.id, images

    def dealt_bytes(self, lot: Lot) -> int:
        """The dealer counts them all."""
        return 0
