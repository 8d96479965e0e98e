"""The cost of a private inference as text and as JSON."""

from dataclasses import asdict
from typing import Any

from deepshare.private.ir.program import ACTIVATIONS
from deepshare.private.result import Cost, Part
from deepshare.text import byte_size, table

_HEADER = ("", "seconds", "server sent", "client sent", "dealer sent", "rounds", "comparisons", "products")


def cost_table(cost: Cost, *, layers: bool = False) -> str:
    """Online, offline and session costs side by side; every layer if asked for."""
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
    """Everything, for JSON."""
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
