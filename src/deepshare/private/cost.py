"""Costs of private inference, measured by its parties or predicted before any training; as tables and for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import ACTIVATIONS, Program
from deepshare.private.runtime.engine import SecondsModel, SessionEngine, engine_names, find_engine
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.text import byte_size, table

if TYPE_CHECKING:
    from deepshare.private.ir.trace import Revealed

_HEADER = ("", "seconds", "server sent", "client sent", "dealer sent", "rounds", "comparisons", "products")


@dataclass(frozen=True)
class Layer:
    """The online cost of one operation of the program."""

    name: str
    kind: str
    part: Part


@dataclass(frozen=True)
class Cost:
    """The cost of an inference.

    Attributes:
        engine: The engine.
        images: Number of images that went through at once.
        layers: The online cost of each operation, in order.
        offline: Work before the images are there: correlated randomness, and handing it out.
        session: Work that is done once and serves all further images: handing over weights, compilation.
        seconds: Wall-clock time from the images to the logits, without offline and session.
        error: The largest difference of a logit from the plain network; None where nobody knows both.
    """

    engine: str
    images: int
    layers: tuple[Layer, ...]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0
    error: float | None = None

    @property
    def online(self) -> Part:
        """All layers together."""
        return sum((layer.part for layer in self.layers), Part())

    @property
    def activations(self) -> Part:
        """The activations alone."""
        return sum((layer.part for layer in self.layers if layer.kind in ACTIVATIONS), Part())


@dataclass(frozen=True, eq=False)
class Result:
    """The client's answer, and its cost.

    Attributes:
        answer: Logits (N, classes) or (N, classes, H, W); or the best classes alone, (N, k) or (N, k, H, W).
        cost: Of the inference.
        hides_scores: Whether the answer is classes alone.
        class_names: Names of the network's classes, where the server gave them.
    """

    answer: Tensor
    cost: Cost
    hides_scores: bool = False
    class_names: tuple[str, ...] = ()

    @property
    def logits(self) -> Tensor:
        """The logits.

        Raises:
            EngineError: The server gives classes alone.
        """
        if self.hides_scores:
            raise EngineError("the server gives classes and no logits: take the result's classes")
        return self.answer

    @property
    def classes(self) -> Tensor:
        """Classes, the best first: those that the server gave, or that of the logits; (N, k) or (N, k, H, W)."""
        return self.answer if self.hides_scores else self.answer.argmax(1, keepdim=True)


def total(engine: str, program: Program, images: int, outcomes: Sequence[Outcome]) -> Cost:
    """Combine the measurements of all parties."""
    layers = []
    for number, operation in enumerate(program.operations):
        parts = [outcome.layers[number] for outcome in outcomes if number in outcome.layers]
        if parts:
            layers.append(Layer(operation.name, operation.kind, reduce(Part.beside, parts)))
    return Cost(
        engine,
        images,
        tuple(layers),
        reduce(Part.beside, [outcome.offline for outcome in outcomes]),
        reduce(Part.beside, [outcome.session for outcome in outcomes]),
        max(outcome.seconds for outcome in outcomes),
    )


def engine_problems(
    model: nn.Module, input_size: tuple[int, ...], *, compare: bool = False, weights: bool = True
) -> dict[str, list[str]]:
    """Find out which engines can run a network, without running any.

    Args:
        model: A network, trained or not.
        input_size: Size of one image.
        compare: Also check that the translated network computes the same, as private inference will.
        weights: Whether its weights are those that are to run; else engines look at the layers alone.

    Returns:
        For each engine what it refuses, by layer and how to fix it; nothing where it runs the network.
    """
    from deepshare.private.ir.trace import translate  # not for clients, who have no model

    try:
        program = translate(model, input_size, compare=compare)
        program = program if weights else program.outline()
    except UnsupportedModelError as error:
        return {name: list(error.problems) for name in engine_names()}
    found: dict[str, list[str]] = {}
    for name in engine_names():
        try:
            find_engine(name).check(program, {})
            found[name] = []
        except UnsupportedModelError as error:
            found[name] = list(error.problems)
    return found


def describe_engines(problems: Mapping[str, Sequence[str]]) -> str:
    """Format what engines refuse, a line for those that say the same."""
    lines: dict[str, list[str]] = {}
    for name, found in problems.items():
        lines.setdefault(f"refused: {first_of(found)}" if found else "runs", []).append(name)
    return "\n".join(f"{', '.join(names)}: {verdict}" for verdict, names in lines.items())


def first_of(problems: Sequence[str]) -> str:
    """The first of some problems, and the number of the others."""
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def predict(
    model: nn.Module | Program,
    input_size: tuple[int, ...],
    engine: str,
    *,
    images: int = 1,
    options: Mapping[str, str] | None = None,
    answer: "Revealed" = "logits",
) -> Cost:
    """Predict bytes, rounds, comparisons and products of an inference without running it; seconds are left out.

    Args:
        model: A network, trained or not, or its program.
        input_size: Size of one image.
        engine: Its name; it need not be installed.
        images: Number of images that go through at once.
        options: Options of the engine.
        answer: What the client gets.

    Raises:
        UnsupportedModelError: The network does something that the engine cannot do.
    """
    from deepshare.private.ir.trace import translate, with_answer

    program = with_answer(model if isinstance(model, Program) else translate(model, input_size), answer)
    chosen, options = find_engine(engine), options or {}
    chosen.check(program, options)
    parts, offline = chosen.predict(program, images, options)
    layers = (
        Layer(operation.name, operation.kind, parts[number])
        for number, operation in enumerate(program.operations)
        if number in parts
    )
    session = chosen.predict_session(program) if isinstance(chosen, SessionEngine) else Part()
    return Cost(engine, images, tuple(layers), offline, session)


@dataclass(frozen=True)
class Link:
    """A connection between two machines.

    Attributes:
        name: Its name in tables, with the round-trip delay.
        delay: Seconds one way.
        rate: Bits a second, each way.
    """

    name: str
    delay: float
    rate: float


LAN = Link("LAN, 1 Gbit/s, 0.5 ms", 0.00025, 1e9)
WAN = Link("WAN, 100 Mbit/s, 40 ms", 0.02, 1e8)


def seconds_on(link: Link, part: Part, delays: float) -> float:
    """Time of the messages alone on a link.

    Args:
        link: The connection.
        part: Bytes and rounds.
        delays: One-way delays that a round of the engine takes.
    """
    return part.rounds * delays * link.delay + 8 * max(part.server_bytes, part.client_bytes) / link.rate


def seconds_by_link(model: SecondsModel, program: Program, cost: Cost) -> dict[str, dict[str, float]]:
    """Estimate seconds with all parties on one machine, and with a link of each kind between the client and the others.

    Args:
        model: How long the engine takes on this machine.
        program: The network.
        cost: Its bytes and rounds.

    Returns:
        For `online` and `before the image`, by `this machine` and by the name of the link.
    """
    online, before = model.seconds(program)
    delays, crossing = find_engine(cost.engine).delays, model.crossing(program)
    # The client sends its openings once it has its lot.
    sent = crossing.client_bytes + crossing.dealer_bytes
    return {
        "online": {"this machine": online}
        | {link.name: online + seconds_on(link, cost.online, delays) for link in (LAN, WAN)},
        "before the image": {"this machine": before}
        | {link.name: before + 2 * crossing.rounds * link.delay + 8 * sent / link.rate for link in (LAN, WAN)},
    }


def seconds_table(seconds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Format as a table the seconds that `seconds_by_link` gives for some networks."""
    rows = [
        (name, what, *(f"{value:.2f} s" for value in places.values()))
        for name, by_phase in seconds.items()
        for what, places in by_phase.items()
    ]
    return table(("network", "", "this machine", LAN.name, WAN.name), rows, "<<>>>")


def cost_table(cost: Cost, *, layers: bool = False) -> str:
    """A table of online, offline and session costs, with every layer if `layers` is set."""
    linear = sum((layer.part for layer in cost.layers if layer.kind not in ACTIVATIONS), Part())
    rows = [(f"  {layer.kind} {layer.name}", layer.part) for layer in cost.layers if layers]
    rows += [
        ("activations", cost.activations),
        ("everything else", linear),
        ("online, in all", cost.online),
        ("offline", cost.offline),
        ("once a session", cost.session),
    ]
    return table(_HEADER, [_row(name, part) for name, part in rows], "<>>>>>>>")


def cost_dict(cost: Cost) -> dict[str, Any]:
    """All costs as plain values, for JSON."""
    return {
        **{key: value for key, value in asdict(cost).items() if key != "layers"},
        "online": asdict(cost.online),
        "activations": asdict(cost.activations),
        "layers": [{"name": layer.name, "kind": layer.kind, **asdict(layer.part)} for layer in cost.layers],
    }


def _row(name: str, part: Part) -> tuple[str, ...]:
    sizes = (part.server_bytes, part.client_bytes, part.dealer_bytes)
    counts = (part.rounds, part.comparisons, part.products)
    return (name, f"{part.seconds:.3f}", *map(byte_size, sizes), *(f"{count:,}" for count in counts))


def made(cost: Cost) -> int:
    """Bytes that the parties send each other before the images."""
    return cost.offline.server_bytes + cost.offline.client_bytes


def cost_comparison(costs: Mapping[str, Cost]) -> str:
    """Several costs of one engine as a table: comparisons, bytes and rounds, and the time of the messages on a link."""
    rows = []
    for name, cost in costs.items():
        delays = find_engine(cost.engine).delays
        for what, part in (("activations", cost.activations), ("in all", cost.online)):
            sent = max(part.server_bytes, part.client_bytes)
            times = (f"{seconds_on(link, part, delays):.2f} s" for link in (LAN, WAN))
            before = byte_size(cost.offline.dealer_bytes or made(cost)) if what == "in all" else ""
            rows.append((name, what, f"{part.comparisons:,}", byte_size(sent), f"{part.rounds:,}", *times, before))
    alone = all(cost.offline.dealer_bytes == 0 < made(cost) for cost in costs.values())
    header = (
        "network",
        "",
        "comparisons",
        "sent by a party",
        "rounds",
        *(link.name for link in (LAN, WAN)),
        "made before" if alone else "dealt before",
    )
    lines = [table(header, rows, "<<>>>>>>"), "Times are those of the messages alone, without computing."]
    once = {name: cost.session.bytes for name, cost in costs.items() if cost.session.bytes}
    if once:
        said = ", ".join(f"{byte_size(size)} ({name})" for name, size in once.items())
        lines.append(f"Sent once, before the first of any number of images: {said}.")
    return "\n".join(lines)


def cost_of_engines(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """Costs by engine and network as a table: all that is sent online, before the image, and once a session."""
    rows = []
    for network in next(iter(costs.values())):
        for engine, by_network in costs.items():
            cost = by_network[network]
            part, dealt = cost.online, cost.offline.dealer_bytes
            times = (f"{seconds_on(link, part, find_engine(engine).delays):.2f} s" for link in (LAN, WAN))
            rows.append(
                (
                    network,
                    engine,
                    f"{part.comparisons:,}",
                    byte_size(part.server_bytes + part.client_bytes),
                    f"{part.rounds:,}",
                    *times,
                    byte_size(made(cost)),
                    byte_size(dealt),
                    byte_size(cost.session.bytes),
                )
            )
    header = (
        *("network", "engine", "comparisons", "sent online", "rounds", LAN.name, WAN.name),
        *("sent before", "dealt before", "sent once"),
    )
    text = table(header, rows, "<<>>>>>>>>")
    return f"{text}\nBytes are those of both parties; times are those of the messages alone, without computing."
