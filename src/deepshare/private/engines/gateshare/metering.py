"""Metering: time, bytes and counts of one party."""

import time
from collections.abc import Sequence
from typing import Protocol

from deepshare.private.runtime.engine import Part


class PayloadCounter(Protocol):
    """A channel that counts the payload which it has sent."""

    sent: int


class PartyMeter:
    """Time and payload since the last reading.

    Args:
        channels: Whose payload counts.
        field: Which bytes of a Part they are.
    """

    def __init__(self, channels: Sequence[PayloadCounter], field: str) -> None:
        self._channels, self._field = channels, field
        self.begin()

    def begin(self) -> None:
        """Forget what happened since the last reading: waiting, or work that is measured elsewhere."""
        self._clock, self._sent = time.perf_counter(), self._total()

    def part(self, rounds: int = 0, comparisons: int = 0, products: int = 0) -> Part:
        """Read time and bytes."""
        now, sent = time.perf_counter(), self._total()
        counts = {self._field: sent - self._sent, "rounds": rounds, "comparisons": comparisons, "products": products}
        part = Part(seconds=now - self._clock, **counts)
        self._clock, self._sent = now, sent
        return part

    def _total(self) -> int:
        return sum(channel.sent for channel in self._channels)


class LayerMeter(PartyMeter):
    """Online costs by operation.

    Attributes:
        parts: By number of the operation.
    """

    def __init__(self, channels: Sequence[PayloadCounter], field: str, operations: int) -> None:
        super().__init__(channels, field)
        self.parts = dict.fromkeys(range(operations), Part())

    def end(self, operation: int, cost: Part) -> None:
        """Book what happened since the last reading to an operation, with the counts of a computed cost."""
        self.parts[operation] += self.part(cost.rounds, cost.comparisons, cost.products)
