"""Costs as tables and JSON; labels of a segmentation network as shares of the pixels and as a picture."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from deepshare.data.palette import coloured
from deepshare.files import write_atomically
from deepshare.private.cost import LAN, WAN, Cost, seconds_on
from deepshare.private.ir.program import ACTIVATIONS
from deepshare.private.runtime.engine import Part, find_engine
from deepshare.text import byte_size, table

_HEADER = ("", "seconds", "server sent", "client sent", "dealer sent", "rounds", "comparisons", "products")


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


def cost_comparison(costs: Mapping[str, Cost]) -> str:
    """Several costs of one engine as a table: comparisons, bytes and rounds, and the time of the messages on a link."""
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


def class_shares(logits: Tensor, classes: Sequence[str]) -> list[dict[str, float]]:
    """The fraction of the pixels of each class that occurs in an image, the largest first.

    Args:
        logits: (N, classes, H, W).
        classes: Their names.
    """
    return [_shares(labels, classes) for labels in logits.argmax(1)]


def _shares(labels: Tensor, classes: Sequence[str]) -> dict[str, float]:
    counts = torch.bincount(labels.flatten(), minlength=len(classes))
    order = counts.argsort(descending=True, stable=True).tolist()
    return {classes[place]: int(counts[place]) / labels.numel() for place in order if counts[place]}


def save_labels(path: Path, logits: Tensor) -> None:
    """Write the classes as a PNG, of several images one below the other.

    The values in the file are the numbers of the classes, as in the masks of data sets; its palette makes them visible.
    """
    labels = logits.argmax(1).flatten(0, 1).to(torch.uint8)
    picture = Image.fromarray(labels.numpy()).convert("P")
    picture.putpalette(coloured(torch.arange(256)[None])[:, 0].T.flatten().tolist())
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    write_atomically(path, written.getvalue())
