"""Sources of lots: a dealer that deals as they are needed, or a pool on disk."""

from typing import Protocol

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing import frames
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.schedule import Schedule
from deepshare.private.engines.gateshare.transport.channel import Channel


class ClientLots(Protocol):
    """A source of the client's lots."""

    def check(self, images: int) -> None:
        """Refuse more images than there will be lots for, before any is spent."""

    def get(self, images: int) -> list[Lot]:
        """Lots for some images, each for the first and the last time."""

    def discard(self, name: bytes) -> None:
        """Give up a lot that cannot be used."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


class ServerLots(Protocol):
    """A source of the server's lots."""

    def expect(self, images: int) -> None:
        """Receive the lot that the client has asked the dealer for."""

    def is_fresh(self, name: bytes) -> bool:
        """Whether a lot is there and was never taken."""

    def take(self, name: bytes) -> Lot:
        """Take a lot out for good."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


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


class ClientLotsFromDealer:
    """The client asks a dealer for lots, and tells the server that it does."""

    def __init__(self, schedule: Schedule, dealer: Channel, server: Channel) -> None:
        self._schedule, self._dealer, self._server, self._stock = schedule, dealer, server, LotStock()

    def check(self, images: int) -> None:
        """The dealer deals as many as are asked for."""

    def get(self, images: int) -> list[Lot]:
        """One lot for all."""
        for channel in (self._server, self._dealer):
            channel.send_message({"deal": images})
        lot = frames.receive_lot(self._dealer, self._schedule, images, "client")
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

    def expect(self, images: int) -> None:
        """Receive a lot from the dealer."""
        self.add(frames.receive_lot(self._dealer, self._schedule, images, "server"))

    def dealt_bytes(self, lot: Lot) -> int:
        """The dealer counts them all."""
        return 0


class LotsFromPool:
    """Either party's lots on disk."""

    def __init__(self, pool: LotPool) -> None:
        self._pool = pool
        self.is_fresh, self.take, self.discard = pool.is_fresh, pool.take, pool.discard

    def check(self, images: int) -> None:
        """Refuse more images than are left of those that were dealt."""
        left = self._pool.left()
        if images > left:
            raise EngineError(f"{images} images, and the pool is good for {left} more: deal anew, or ask fewer")

    def get(self, images: int) -> list[Lot]:
        """The first lots that are left, one for each image."""
        names = self._pool.names()
        if len(names) < images:
            raise EngineError(f"{images} images wanting, and {len(names)} lots left in the pool: deal anew")
        return [self.take(name) for name in names[:images]]

    def dealt_bytes(self, lot: Lot) -> int:
        """All of it, as it came from the dealer."""
        return len(lot.id) + len(lot.seed) + sum(piece.nbytes for piece in lot.pieces.values())

    def expect(self, images: int) -> None:
        """Refuse: there is nobody to ask."""
        raise EngineError("the client asks for lots and this server has a pool: give the client its own with --pool")
