"""Cost of private inference of a run's network: predicted for every engine, measured where available, and as tables.

A measurement is the output of `deepshare private run RUN --json`, kept as a file in the folder `private` of RUN.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from deepshare.errors import CheckpointError, UnsupportedModelError
from deepshare.files import write_atomically
from deepshare.private.cost import LAN, WAN, Cost, Layer, cost_dict, predict, seconds_on
from deepshare.private.ir.program import ACTIVATIONS, Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import engine_names, find_engine
from deepshare.private.runtime.outcome import Part
from deepshare.study.report.markup import Child, Node, bar, node, section, table
from deepshare.text import byte_size
from deepshare.training.build import build
from deepshare.training.recipe.files import Recipe

T = TypeVar("T")
HEADLINE = "gateshare"  # the default engine, whose cost stands beside the score
ENGINE = "crypten"  # its cost is shown layer by layer
# These send every activation once, gate or not, so fewer gates hardly reduce what is sent online.
OPENING = ("gateshare", "gateshare-2pc")
MEASURED = "Measured, per image of a batch; rounds are those of the whole batch"
TITLE = "Cost of private inference"
FEW = 48  # the table of layers is unfolded up to this many
NAMES = {"SharedActivation": "activation", "GatedActivation": "activation"}


@dataclass(frozen=True)
class Predicted:
    """Predicted cost of one image.

    Attributes:
        costs: Cost by engine, or the reason why an engine refuses the network.
        plain: The same for the plain network of the recipe with all its ReLUs; empty for a plain run.
        offline: Offline bytes of each layer in the costs of `ENGINE`.
        elements: Number of outputs of each of these layers.
    """

    costs: Mapping[str, Cost | str]
    plain: Mapping[str, Cost | str]
    offline: tuple[int, ...]
    elements: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        costs, plain = (
            {name: cost if isinstance(cost, str) else cost_dict(cost) for name, cost in found.items()}
            for found in (self.costs, self.plain)
        )
        return {"images": 1, "costs": costs, "plain": plain, "offline_bytes_by_layer": {ENGINE: list(self.offline)}}


def predict_costs(network: nn.Module, recipe: Recipe, input_size: tuple[int, ...]) -> Predicted:
    """Predict the cost of one image for every engine, installed or not, for a network and its plain counterpart.

    Raises:
        UnsupportedModelError: The network has an operation that private inference does not support.
    """
    program = translate(network, input_size)
    plain = {} if recipe.is_plain else _costs(translate(build(recipe.model), input_size))
    elements = tuple(operation.elements for operation in program.operations)
    return Predicted(_costs(program), plain, _offline_by_layer(program), elements)


def _costs(program: Program) -> dict[str, Cost | str]:
    return {name: or_reason(partial(predict, program, program.input_size, name)) for name in engine_names()}


def _offline_by_layer(program: Program) -> tuple[int, ...]:
    """Offline bytes that each operation adds to those before it."""
    engine = find_engine(ENGINE)
    whole = [
        sent(engine.predict(Program(program.operations[:end]), 1, {})[1])
        for end in range(1, len(program.operations) + 1)
    ]
    return tuple(after - before for before, after in zip([0, *whole], whole, strict=False))


def sent(part: Part) -> int:
    """Bytes sent by all parties."""
    return part.server_bytes + part.client_bytes + part.dealer_bytes


def or_reason(make: Callable[[], T]) -> T | str:
    """Return the result, or the reason why the network does not support it."""
    try:
        return make()
    except UnsupportedModelError as error:
        return str(error)


def keep_measured(folder: Path, cost: Cost) -> Path:
    """Write a measurement into a run folder under the name of its engine, and return its path."""
    (folder / "private").mkdir(exist_ok=True)
    path = folder / "private" / f"{cost.engine}.json"
    write_atomically(path, (json.dumps({"cost": cost_dict(cost)}) + "\n").encode())
    return path


def read_measured(folder: Path) -> dict[str, Cost]:
    """Read the measurements in a run folder, by file name.

    Raises:
        CheckpointError: A file is not a measurement.
    """
    return {path.stem: _read(path) for path in sorted((folder / "private").glob("*.json"))}


def _read(path: Path) -> Cost:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["cost"]
        layers = tuple(Layer(str(entry["name"]), str(entry["kind"]), _part(entry)) for entry in content["layers"])
        error, images = content["error"], int(content["images"])
        if images < 1:
            raise ValueError("no image")
        return Cost(
            str(content["engine"]),
            images,
            layers,
            _part(content["offline"]),
            _part(content["session"]),
            float(content["seconds"]),
            None if error is None else float(error),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a measured cost: write the output of `deepshare private run --json`, or remove it"
        ) from error


def _part(entry: Mapping[str, Any]) -> Part:
    return Part(**{name: type(value)(entry[name]) for name, value in vars(Part()).items()})


def cost_section(predicted: Predicted | str, measured: Mapping[str, Cost], *, alone: bool) -> Node:
    """Section of tables; the layers are unfolded if they are few and the page is about this run alone."""
    measurements = [node("h4", MEASURED), _measured(measured)] if measured else []
    if isinstance(predicted, str):
        return section(TITLE, f"It cannot be predicted: {predicted}", *measurements)
    about = (
        "Predicted for one image from the network alone. Online bytes are sent while the image waits, offline bytes "
        "before it arrives; times are those of the messages alone, on a LAN "
        f"({LAN.name.removeprefix('LAN, ')}) and a WAN ({WAN.name.removeprefix('WAN, ')})."
    )
    about += "".join(
        f" With {engine} fewer gates hardly reduce what is sent online, where every activation is masked and sent "
        f"once, gate or not; they reduce what is made in advance: {before} instead of {before_plain}."
        for engine, before, before_plain in _saved_in_advance(predicted)
    )
    return section(TITLE, about, _engines(predicted), *measurements, _layers(predicted, alone=alone))


def _saved_in_advance(predicted: Predicted) -> Iterator[tuple[str, str, str]]:
    """Yield the engines that send as much online as for the plain network, and offline bytes of both."""
    for engine in OPENING:
        cost, plain = predicted.costs.get(engine), predicted.plain.get(engine)
        if not isinstance(cost, Cost) or not isinstance(plain, Cost):
            continue
        if sent(cost.online) >= 0.9 * sent(plain.online) and sent(cost.offline) < sent(plain.offline):
            yield engine, byte_size(sent(cost.offline)), byte_size(sent(plain.offline))


def _engines(predicted: Predicted) -> Node:
    header = ("engine", "network", "online", "offline", "rounds", "comparisons", "LAN", "WAN")
    rows: list[tuple[Child, ...]] = []
    for engine in predicted.costs:
        for network, name, costs in (("this one", engine, predicted.costs), ("plain", "", predicted.plain)):
            cost = costs.get(engine)
            if isinstance(cost, str):
                rows.append((name, network, node("span", cost, class_="reason"), *[""] * 5))
            elif cost is not None:
                rows.append((name, network, *_row(cost)))
    return table(header, rows, "<<>>>>>>", class_="engines")


def _row(cost: Cost) -> tuple[str, ...]:
    part, delays = cost.online, find_engine(cost.engine).delays
    times = (_time(seconds_on(link, part, delays)) for link in (LAN, WAN))
    return (byte_size(sent(part)), byte_size(sent(cost.offline)), f"{part.rounds:,}", f"{part.comparisons:,}", *times)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _layers(predicted: Predicted, *, alone: bool) -> Node | None:
    cost = predicted.costs[ENGINE]
    if isinstance(cost, str):
        return None
    online, offline = sent(cost.online), sent(cost.offline)
    most_online = max(sent(layer.part) for layer in cost.layers)
    rows = [
        (
            layer.name or "(network)",
            NAMES.get(layer.kind, layer.kind.lower()),
            f"{int(layer.part.rounds):,}",
            f"{layer.part.comparisons:,}",
            byte_size(sent(layer.part)),
            bar(sent(layer.part), online, most_online, "activation" if layer.kind in ACTIVATIONS else "linear"),
            byte_size(before),
            bar(before, offline, max(predicted.offline), "activation" if layer.kind in ACTIVATIONS else "linear"),
        )
        for layer, before in zip(cost.layers, predicted.offline, strict=True)
        if sent(layer.part) or before
    ]
    header = ("layer", "kind", "rounds", "comparisons", "online", "share", "offline", "share")
    made = table(header, rows, "<<>>><><", class_="layers")
    title = f"Layer by layer, with {ENGINE}: {len(rows)} layers"
    return node("details", node("summary", title), made, open="" if alone and len(rows) <= FEW else None)


def _measured(measured: Mapping[str, Cost]) -> Node:
    header = ("measurement", "engine", "images", "time", "online", "offline", "rounds", "comparisons", "error")
    rows = [
        (
            name,
            cost.engine,
            f"{cost.images:,}",
            _time(cost.seconds / cost.images),
            byte_size(round(sent(cost.online) / cost.images)),
            byte_size(round(sent(cost.offline) / cost.images)),
            f"{cost.online.rounds:,}",
            f"{round(cost.online.comparisons / cost.images):,}",
            "" if cost.error is None else f"{cost.error:.0e}",
        )
        for name, cost in measured.items()
    ]
    return table(header, rows, "<<>>>>>>>", class_="measured")
