"""Figure of the kinds of boundaries: those in the paper's supplement, and the degenerate one that its proof omits."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from deepshare.study import drawing
from deepshare.study.boundary.classification import (
    BoundaryKind,
    Coordinates,
    Form,
    LinePiece,
    OneRelu,
    classify,
    misses,
)
from deepshare.study.drawing import DARK, FAINT, FRAME, PALE_BLUE, PALE_ORANGE, TICKS
from deepshare.study.xor.experiment import grid, label
from deepshare.text import table

SIDE = 240
ZERO = "#8a8a8a"
PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "boxstyle": "round,pad=0.15"}


def _example(a: float, gate: tuple[float, float, float], linear: tuple[float, float, float]) -> OneRelu:
    return OneRelu(Fraction(a), Form.of(gate[:2], gate[2]), Form.of(linear[:2], linear[2]))


EXAMPLES: Mapping[BoundaryKind, OneRelu] = {
    "two-piece line": _example(-2, (1, 0.25, 0), (0.5, 1, 0)),
    "line": _example(-2, (1, 0.5, 0.25), (0, 0, 1.25)),
    "parallel lines": _example(-2, (1, 0.5, 0), (1, 0.5, 0.5)),
    "half-plane": _example(1, (1, 0.5, 0), (0, 0, 0)),
}
TITLES = {
    "two-piece line": "Two pieces that meet on H",
    "line": "One line",
    "parallel lines": "Two parallel lines",
    "half-plane": "Degenerate: zero on all of H\N{SUPERSCRIPT MINUS}",
}


def accuracy(network: OneRelu) -> float:
    """Share of a grid over the square [-1, 1]^2 that the network labels as the checkerboard does."""
    points = grid()[..., 0].double()
    decided = _scores(network, points[0].numpy(), points[1].numpy()) > 0
    return float((decided == (label(points) > 0).numpy()).mean())


def to_dict() -> dict[str, Any]:
    """Describe all examples for JSON: parameters, boundary, and accuracy on the checkerboard."""
    return {"networks": {kind: _entry(network) for kind, network in EXAMPLES.items()}}


def _entry(network: OneRelu) -> dict[str, Any]:
    boundary = classify(network)
    return {
        "f": formula(network),
        "boundary": boundary.kind,
        "lines": [[*map(float, piece.line.slope), float(piece.line.offset)] for piece in boundary.pieces],
        "accuracy": accuracy(network),
        "missed": [[float(x) for x in point] for point in misses(network)],
    }


def as_table() -> str:
    """Describe all examples as a text table."""
    rows = [
        (entry["boundary"], entry["f"], f"{entry['accuracy']:.1%}", _said(misses(EXAMPLES[kind])[0]))
        for kind, entry in ((kind, _entry(network)) for kind, network in EXAMPLES.items())
    ]
    return table(("boundary", "network", "checkerboard", "a point that it mislabels"), rows, "<<><")


def _said(point: Coordinates) -> str:
    return f"({float(point[0]):g}, {float(point[1]):g})"


def formula(network: OneRelu) -> str:
    """Format a network as text.

    >>> formula(_example(-2, (1, 0.5, 0), (0, -1, 1.25)))
    '-2 relu(x1 + 0.5 x2) - x2 + 1.25'
    """
    return _terms([(network.a, f" relu({_terms(_parts(network.gate))})"), *_parts(network.linear)])


def _parts(form: Form) -> list[tuple[Fraction, str]]:
    return [(form.slope[0], " x1"), (form.slope[1], " x2"), (form.offset, "")]


def _terms(parts: list[tuple[Fraction, str]]) -> str:
    text = ""
    for factor, name in parts:
        if factor:
            size = "" if abs(factor) == 1 and name else f"{float(abs(factor)):g}"
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += sign + f"{size}{name}".strip()
    return text or "0"


def draw() -> Figure:
    """Draw four panels: the three kinds of the supplement, and the half-plane."""
    figure = Figure(figsize=(12.8, 4.2), layout=ConstrainedLayoutEngine(wspace=0.04))
    figure.suptitle(
        "The boundaries that one ReLU and any linear neurons can have, if they have one. None is the checkerboard.",
        fontsize=10.5,
        color=FAINT,
    )
    for axes, (kind, network) in zip(figure.subplots(1, len(EXAMPLES)).flat, EXAMPLES.items(), strict=True):
        _panel(axes, kind, network)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, kind: BoundaryKind, network: OneRelu) -> None:
    centres = (np.arange(SIDE) * 2 + 1) / SIDE - 1
    scores = _scores(network, *np.meshgrid(centres, centres))
    colours = ListedColormap([PALE_BLUE, "white", PALE_ORANGE])
    extent = (-1, 1, -1, 1)
    axes.imshow(np.sign(scores), colours, vmin=-1, vmax=1, extent=extent, origin="lower", interpolation="nearest")
    if classify(network).area is not None:
        hatched = axes.contourf(centres, centres, scores == 0, [0.5, 1.5], colors="none", hatches=["///"])
        hatched.set(edgecolor=ZERO, linewidth=0)
    for piece in classify(network).pieces:
        axes.plot(*_stroke(piece), color=DARK, linewidth=2.4)
    axes.plot(*_stroke(LinePiece(network.gate)), color=DARK, linestyle="--", linewidth=1.2)
    _name_sides(axes, network.gate)
    axes.set_title(TITLES[kind], fontsize=11, fontweight="bold", pad=20)
    axes.text(0.5, 1.02, f"f = {formula(network)}", transform=axes.transAxes, ha="center", fontsize=9, color=FAINT)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
    axes.tick_params(length=0, labelsize=8, colors=TICKS)
    axes.spines[:].set_color(FRAME)


def _name_sides(axes: Axes, gate: Form) -> None:
    """Label the two sides of the gate's line H+ and H-, near the bottom."""
    (first, second), height = map(float, gate.slope), -0.86
    crossing = -(float(gate.offset) + second * height) / first
    for side, name in ((-1, "H\N{SUPERSCRIPT MINUS}"), (1, "H\N{SUPERSCRIPT PLUS SIGN}")):
        place = (crossing + side * 0.17, height)
        axes.text(*place, name, ha="center", va="center", fontsize=10, color=DARK, bbox=PLATE)


def _scores(network: OneRelu, x1: Any, x2: Any) -> Any:
    gate, linear = (
        float(form.slope[0]) * x1 + float(form.slope[1]) * x2 + float(form.offset)
        for form in (network.gate, network.linear)
    )
    return float(network.a) * np.maximum(gate, 0) + linear


def _stroke(piece: LinePiece) -> Any:
    """End points of a line or ray as two x1 and two x2; infinite ends lie well outside the square."""
    slope, offset = np.array(piece.line.slope, float), float(piece.line.offset)
    way = np.array([-slope[1], slope[0]]) / np.hypot(*slope)
    base, ends = -offset * slope / slope.dot(slope), np.array([-4.0, 4.0])
    if piece.within is not None:
        inwards = np.array(piece.within.slope, float)
        begin = -(inwards.dot(base) + float(piece.within.offset)) / inwards.dot(way)
        ends[0 if inwards.dot(way) > 0 else 1] = begin
    return base[:, None] + way[:, None] * ends


def _marks() -> list[Line2D | Patch]:
    square: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 11}
    return [
        Line2D([], [], color=DARK, linewidth=2.4, label="the boundary, f = 0"),
        Line2D([], [], color=DARK, linestyle="--", linewidth=1.2, label="H, where the gate turns"),
        Line2D([], [], color=PALE_ORANGE, label="f > 0", **square),
        Line2D([], [], color=PALE_BLUE, label="f < 0", **square),
        Patch(facecolor="white", edgecolor=ZERO, hatch="////", label="f = 0 on an area"),
    ]


def save(folder: Path, command: str) -> None:
    """Write boundaries.json, boundaries.svg and boundaries.png into an existing folder."""
    drawing.save("boundaries", to_dict(), draw, folder, command)
