"""Time, bytes and counts of one party."""

import time
from collections.abc import Sequence
from typing import Protocol

from deepshare.private.engines.gateshare.schedule import Gate, Square, Step
from deepshare.private.runtime.engine import Part


class Counting(Protocol):
    """Something that counts the payload which it has sent."""

    sent: int


class Meter:
    """What happened since it was last asked.

    Args:
        channels: Whose payload counts.
        field: Which bytes of a Part they are.
    """

    def __init__(self, channels: Sequence[Counting], field: str) -> None:
        self._channels, self._field = channels, field
        self.begin()

    def begin(self) -> None:
        """Forget what happened since it was last asked: waiting, or work that is measured elsewhere."""
        self._clock, self._sent = time.perf_counter(), self._total()

    def part(self, rounds: int = 0, comparisons: int = 0, products: int = 0) -> Part:
        """Time and bytes since it was last asked."""
        now, sent = time.perf_counter(), self._total()
        counts = {self._field: sent - self._sent, "rounds": rounds, "comparisons": comparisons, "products": products}
        part = Part(seconds=now - self._clock, **counts)
        self._clock, self._sent = now, sent
        return part

    def _total(self) -> int:
        return sum(channel.sent for channel in self._channels)


class Layers(Meter):
    """Online costs by operation."""

    def __init__(self, channels: Sequence[Counting], field: str, operations: int) -> None:
        super().__init__(channels, field)
        self.parts = dict.fromkeys(range(operations), Part())

    def end(self, step: Step, images: int) -> None:
        """Book what happened to a step."""
        self.parts[step.operation] += self.part(*counts(step, images))

    def reveal(self, step: Step) -> None:
        """Book the message with the logits."""
        self.parts[step.operation] += self.part(1)


def counts(step: Step, images: int) -> tuple[int, int, int]:
    """Rounds, comparisons and products of a step for some images."""
    if isinstance(step, Square):
        return step.rounds, 0, images * step.opening.products
    if not isinstance(step, Gate):
        return 0, 0, 0
    return 1, images * step.comparisons, images * step.products * (3 if step.affine else 1)
