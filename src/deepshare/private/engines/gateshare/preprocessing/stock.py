"""Lots in memory, from a dealer that deals as they are needed."""

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.preprocessing.lot import Lot


class Stock:
    """One party's lots. A lot can be taken once; one that was taken before is refused."""

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
