"""What a program will cost, from its shapes alone: online what the parties measure, to the byte and the round.

Offline too, if numbers have the format that nearly all networks of their size have, see `Numbers.usual`, and no lot has
to be replaced. A wider range makes the keys of its comparisons larger.
"""

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.prg import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import Numbers
from deepshare.private.engines.gateshare.metering import counts
from deepshare.private.engines.gateshare.preprocessing.lot import ahead_shapes, lot_bytes, packed_size
from deepshare.private.engines.gateshare.schedule import Gate, Opening, Schedule, Square, Step, Take
from deepshare.private.engines.gateshare.weights import session_shapes
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Part

WORD = 8
# What a party may hold for one inference, if one image does not need more; more images are several inferences, one
# after the other. A server may hold as much for each of its clients.
_MOST_BYTES = 1 << 28


def inferences(program: Program, images: int) -> list[int]:
    """How many images go together, in turn."""
    steps = schedule(program, Numbers.usual(program))
    held = 6 * WORD * sum(step.products for step in steps.steps if isinstance(step, Gate | Opening))
    most = max(1, _MOST_BYTES // (held + lot_bytes(steps, 1, "client") + lot_bytes(steps, 1, "server")))
    whole, rest = divmod(images, most)
    return [most] * whole + [rest] * bool(rest)


def online(program: Program, images: int) -> dict[int, Part]:
    """The cost of each operation, without the time."""
    steps = schedule(program, Numbers.usual(program))
    parts = dict.fromkeys(range(len(program.operations)), Part())
    for together in inferences(program, images):
        for step in steps.steps:
            parts[step.operation] += _step(step, together)
        last = steps.steps[steps.output]
        parts[last.operation] += Part(server_bytes=WORD * together * last.elements, rounds=1)
    return parts


def offline(program: Program, images: int) -> Part:
    """What the dealer sends to both, and the client ahead, if no lot has to be replaced."""
    steps = schedule(program, Numbers.usual(program))
    dealt = sum(to_server(steps, n) + to_client(steps, n) for n in inferences(program, images))
    return Part(dealer_bytes=dealt, client_bytes=images * ahead(steps))


def session(program: Program) -> Part:
    """What is sent once: masked weights to the client, and the seed of their masks to the server."""
    shapes = session_shapes(schedule(program, Numbers.usual(program)))
    return Part(server_bytes=sum(_words(shape) for step in shapes.values() for shape in step), dealer_bytes=SEED_BYTES)


def to_server(steps: Schedule, images: int) -> int:
    """Bytes from the dealer to the server for one inference."""
    return lot_bytes(steps, images, "server")


def to_client(steps: Schedule, images: int) -> int:
    """Bytes from the dealer to the client for one inference."""
    return lot_bytes(steps, images, "client")


def ahead(steps: Schedule) -> int:
    """Bytes from the client to the server before each image."""
    return sum(_words(shape) for shape in ahead_shapes(steps).values())


def _step(step: Step, images: int) -> Part:
    if isinstance(step, Take):
        return Part(client_bytes=WORD * images * step.elements)
    if isinstance(step, Opening):
        return Part(server_bytes=WORD * images * step.products)
    if isinstance(step, Square):
        rounds, comparisons, products = counts(step, images)
        sent = WORD * images * step.opening.products
        return Part(client_bytes=sent, rounds=rounds, comparisons=comparisons, products=products)
    if not isinstance(step, Gate):
        return Part()
    sent = WORD * images * step.products + packed_size(images * step.comparisons)
    return Part(0.0, sent, sent, 0, *counts(step, images))


def _words(shape: tuple[int, ...]) -> int:
    size = WORD
    for length in shape:
        size *= length
    return size
