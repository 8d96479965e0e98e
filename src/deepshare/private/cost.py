"""What a private inference will cost, from a model and a plan alone: for choosing a budget before any training."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.result import Cost, Layer, Part
from deepshare.private.runtime.engine import find_engine
from deepshare.text import byte_size, table


@dataclass(frozen=True)
class Link:
    """A connection between two machines.

    Attributes:
        name: What it is called, with the delay there and back.
        delay: Seconds one way.
        rate: Bits a second, each way.
    """

    name: str
    delay: float
    rate: float


LAN = Link("LAN, 1 Gbit/s, 0.5 ms", 0.00025, 1e9)
WAN = Link("WAN, 100 Mbit/s, 40 ms", 0.02, 1e8)


def predict(
    model: nn.Module | Program,
    input_size: tuple[int, ...],
    engine: str,
    *,
    images: int = 1,
    options: Mapping[str, str] | None = None,
) -> Cost:
    """Bytes, rounds, comparisons and products of an inference, without running it; seconds are not predicted.

    Args:
        model: A network, trained or not, or its program.
        input_size: Size of one image.
        engine: Its name; it need not be installed.
        images: How many go through at once.
        options: The engine's.

    Raises:
        UnsupportedModelError: The network does something that the engine cannot do.
    """
    program = model if isinstance(model, Program) else translate(model, input_size)
    chosen, options = find_engine(engine), options or {}
    chosen.check(program, options)
    parts, offline = chosen.predict(program, images, options)
    layers = (
        Layer(operation.name, operation.kind, parts[number])
        for number, operation in enumerate(program.operations)
        if number in parts
    )
    return Cost(engine, images, tuple(layers), offline)


def seconds_on(link: Link, part: Part, delays: float) -> float:
    """The time that messages alone take on a link.

    Args:
        link: The connection.
        part: Bytes and rounds.
        delays: One-way delays that a round of the engine takes.
    """
    return part.rounds * delays * link.delay + 8 * max(part.server_bytes, part.client_bytes) / link.rate


def comparison(costs: Mapping[str, Cost]) -> str:
    """Several costs of one engine as a table: what goes over the wire, and the time that takes."""
    rows = []
    for name, cost in costs.items():
        delays = find_engine(cost.engine).delays
        for what, part in (("activations", cost.activations), ("in all", cost.online)):
            sent = max(part.server_bytes, part.client_bytes)
            times = (f"{seconds_on(link, part, delays):.2f} s" for link in (LAN, WAN))
            dealt = byte_size(cost.offline.dealer_bytes) if what == "in all" else ""
            rows.append((name, what, f"{part.comparisons:,}", byte_size(sent), f"{part.rounds:,}", *times, dealt))
    header = (
        "network",
        "",
        "comparisons",
        "sent by a party",
        "rounds",
        *(link.name for link in (LAN, WAN)),
        "dealt before",
    )
    return f"{table(header, rows, '<<>>>>>>')}\nTimes are those of the messages alone, without computing."
