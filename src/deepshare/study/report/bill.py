"""What private inference costs, as tables: for every engine, layer by layer, and as measured."""

from collections.abc import Mapping

from deepshare.private.cost import LAN, WAN, Cost, seconds_on
from deepshare.private.ir.program import ACTIVATIONS
from deepshare.private.runtime.engine import find_engine
from deepshare.study.report.budget import bar
from deepshare.study.report.cost import ENGINE, Predicted, sent
from deepshare.study.report.markup import Child, Node, node, section, table
from deepshare.study.report.run import Run
from deepshare.text import byte_size

MEASURED = "Measured, for one of the images that went through together; rounds are those of all of them"
TITLE = "What private inference costs"
FEW = 48  # layers at most, where they are shown without being asked for
NAMES = {"SharedActivation": "activation", "GatedActivation": "activation", "MaxPool": "max pool"}


def bill(run: Run, *, alone: bool) -> Node:
    """The section; the layers are open where the page is about this run alone and there are few."""
    measured = [] if not run.measured else [node("h4", MEASURED), _measured(run.measured)]
    if isinstance(run.predicted, str):
        return section(TITLE, f"It cannot be predicted: {run.predicted}", *measured)
    about = (
        "Predicted for one image from the network alone. Online is what is sent while the image "
        "waits, offline what can be sent before; seconds are those of the messages alone, on a LAN "
        f"({LAN.name.removeprefix('LAN, ')}) and a WAN ({WAN.name.removeprefix('WAN, ')})."
    )
    return section(TITLE, about, _engines(run.predicted), *measured, _layers(run.predicted, alone=alone))


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
