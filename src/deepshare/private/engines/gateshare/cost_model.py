"""Costs: bytes and rounds of a program computed from its shapes alone, and meters of what a party does.

Online the computed costs are what the parties measure, to the byte and the round. Offline too, if the network has the
usual number format, see `NumberFormat.usual`, and no lot has to be replaced. A wider range makes keys larger.
Without a dealer a range beyond 37 bits makes comparisons larger, online too.
"""

import math
import time
from collections.abc import Sequence
from typing import Protocol

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import (
    ComparisonBits,
    NumberFormat,
    fractional_format,
    predicted_format,
)
from deepshare.private.engines.gateshare.protocols.affine import affine_session
from deepshare.private.engines.gateshare.protocols.local import output_cost
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import WORD
from deepshare.private.engines.gateshare.protocols.transfers import base_cost
from deepshare.private.ir.program import Program
from deepshare.private.runtime.outcome import Part

# What a party may hold for one inference, if one image does not need more; more images are several inferences, one
# after the other. A server may hold as much for each of its clients.
_MOST_BYTES = 1 << 28


def inferences(program: Program, images: int, *, dealt: bool = True) -> list[int]:
    """Numbers of images that go together, in turn."""
    steps = _usual(program, dealt)
    held = sum(step.held_bytes for step in steps.steps)
    most = max(1, _MOST_BYTES // (held + steps.lot_bytes(1, "client") + steps.lot_bytes(1, "server")))
    whole, rest = divmod(images, most)
    return [most] * whole + [rest] * bool(rest)


def online(program: Program, images: int, *, dealt: bool = True) -> dict[int, Part]:
    """The cost of each operation, without the time."""
    steps = _usual(program, dealt)
    parts = dict.fromkeys(range(len(program.operations)), Part())
    for together in inferences(program, images, dealt=dealt):
        for step in steps.steps:
            parts[step.operation] += step.online_cost(together)
        last = steps.steps[steps.output]
        parts[last.operation] += output_cost(last, together)
    return parts


def offline(
    program: Program, images: int, *, dealt: bool = True, comparison_bits: ComparisonBits | None = None
) -> Part:
    """Bytes of the dealer to both, and of the client to the server, if no lot has to be replaced.

    Without a dealer, what both send each other, hints for the first images included: but for squares and products,
    where sizes of ciphertexts are measured ones and hold within 10%.
    """
    steps = schedule(program, predicted_format(program, comparison_bits), dealt=dealt)
    cost = Part(client_bytes=images * opening_bytes(steps))
    batches = inferences(program, images, dealt=dealt)
    if not dealt:
        cost += steps.hint_cost(batches)
    for together in batches:
        if dealt:
            cost += Part(dealer_bytes=steps.lot_bytes(together, "server") + steps.lot_bytes(together, "client"))
        else:
            cost += steps.making_cost(together)
    return cost


def session(program: Program, *, dealt: bool = True) -> Part:
    """Bytes sent once: masked weights to the client, and the seed of their masks to the server.

    Without a dealer, base transfers, and keys for alpha and beta, whose size depends on their fractional bits.
    """
    if not dealt:
        steps = schedule(program, fractional_format(program), dealt=False)
        return base_cost() + affine_session(steps.affine_layers())
    steps = _usual(program, dealt)
    shapes = steps.masked_weight_shapes()
    words = sum(math.prod(shape) for step in shapes.values() for shape in step)
    return Part(server_bytes=WORD * words, dealer_bytes=SEED_BYTES)


def opening_bytes(steps: Schedule) -> int:
    """Bytes from the client to the server before each image."""
    return WORD * sum(math.prod(shape) for shape in steps.client_openings().values())


def _usual(program: Program, dealt: bool) -> Schedule:
    return schedule(program, NumberFormat.usual(program), dealt=dealt)


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
