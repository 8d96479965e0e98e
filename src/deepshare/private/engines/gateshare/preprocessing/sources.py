"""Where a party's lots come from: a dealer that deals as they are needed, or a pool on disk."""

from typing import Protocol

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.preprocessing.lot import Lot
from deepshare.private.engines.gateshare.preprocessing.pool import Pool
from deepshare.private.engines.gateshare.preprocessing.stock import Stock
from deepshare.private.engines.gateshare.schedule import Schedule
from deepshare.private.engines.gateshare.transport import frames
from deepshare.private.engines.gateshare.transport.channel import Channel


class ForClient(Protocol):
    """What the client gets its lots from."""

    def check(self, images: int) -> None:
        """Refuse more images than there will be lots for, before any is spent."""

    def get(self, images: int) -> list[Lot]:
        """Lots for some images, each for the first and the last time."""

    def discard(self, name: bytes) -> None:
        """A lot that was got is of no use."""

    def dealt(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


class ForServer(Protocol):
    """What the server gets its lots from."""

    def expect(self, images: int) -> None:
        """The client has asked the dealer for a lot."""

    def is_fresh(self, name: bytes) -> bool:
        """Whether a lot is there and was never taken."""

    def take(self, name: bytes) -> Lot:
        """Take a lot out for good."""

    def dealt(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


class AskedFor:
    """The client asks a dealer, and tells the server that it does."""

    def __init__(self, schedule: Schedule, dealer: Channel, server: Channel) -> None:
        self._schedule, self._dealer, self._server, self._stock = schedule, dealer, server, Stock()

    def check(self, images: int) -> None:
        """The dealer deals as many as are asked for."""

    def get(self, images: int) -> list[Lot]:
        """One lot for all."""
        for channel in (self._server, self._dealer):
            channel.tell({"deal": images})
        lot = frames.receive_lot(self._dealer, self._schedule, images, "client")
        self._stock.add(lot)
        return [self._stock.take(lot.id)]

    def discard(self, name: bytes) -> None:
        """It is spent, and nobody counts."""

    def dealt(self, lot: Lot) -> int:
        """The dealer counts them all."""
        return 0


class Sent(Stock):
    """The dealer sends the server its halves of what the client asks for."""

    def __init__(self, schedule: Schedule, dealer: Channel) -> None:
        super().__init__()
        self._schedule, self._dealer = schedule, dealer

    def expect(self, images: int) -> None:
        """Get a lot from the dealer."""
        self.add(frames.receive_lot(self._dealer, self._schedule, images, "server"))

    def dealt(self, lot: Lot) -> int:
        """The dealer counts them all."""
        return 0


class FromPool:
    """Either party's pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.is_fresh, self.take, self.discard = pool.is_fresh, pool.take, pool.discard

    def check(self, images: int) -> None:
        """Refuse more than are left of those that were dealt."""
        left = self._pool.left()
        if images > left:
            raise EngineError(f"{images} images, and the pool is good for {left} more: deal anew, or ask fewer")

    def get(self, images: int) -> list[Lot]:
        """The first lots that are left, one for each image."""
        names = self._pool.names()
        if len(names) < images:
            raise EngineError(f"{images} images wanting, and {len(names)} lots left in the pool: deal anew")
        return [self.take(name) for name in names[:images]]

    def dealt(self, lot: Lot) -> int:
        """All of it, as it came from the dealer."""
        return len(lot.id) + len(lot.seed) + sum(piece.nbytes for piece in lot.pieces.values())

    def expect(self, images: int) -> None:
        """There is nobody to ask."""
        raise EngineError("the client asks for lots and this server has a pool: give the client its own with --pool")
