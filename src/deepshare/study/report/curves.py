"""Section of training curves: score, loss and gates after every epoch of every phase."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from deepshare.study.report.chart import WIDTH, AxisScale, Panel, Point, framed, legend, spread, svg, text, wide
from deepshare.study.report.markup import Node, node, section
from deepshare.study.report.run import Run

LEFT, RIGHT, TOP, GAP, BOTTOM = 58.0, WIDTH - 12, 46.0, 38.0, 40.0
LETTER = 6.4
SCORES = {"accuracy": "accuracy, %", "miou": "mIoU, %"}
# Gate metrics that methods record: name in the chart, and factor from the record to the chart.
GATES = {"hard_share": ("hard gates, %", 100.0), "gates": ("gates, thousands", 0.001), "ratio": ("ReLU left, %", 100.0)}

Read = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Track:
    """One of the stacked charts.

    Attributes:
        name: Quantity and unit.
        height: Height of its area.
        series: Style sheet class and reader of an epoch's record, for each curve.
        logarithmic: Whether the scale is logarithmic.
        bounds: Limits of the values.
    """

    name: str
    height: float
    series: tuple[tuple[str, Read], ...]
    logarithmic: bool = False
    bounds: tuple[float, float] = (0.0, math.inf)

    def scale(self, values: list[float], top: float) -> AxisScale:
        """Vertical scale for the given values."""
        if self.logarithmic:
            return AxisScale(*wide(values, 1.2), top + self.height, top, logarithmic=True)
        low, high = spread(values, least=4)
        return AxisScale(max(low, self.bounds[0]), min(high, self.bounds[1]), top + self.height, top)


def curves_section(run: Run) -> Node:
    """Section of stacked charts over epochs."""
    tracks, last = _tracks(run), run.strands[-1].lines[-1]
    x = AxisScale(0, max(run.epochs, 1), LEFT, RIGHT, spacing=80.0, whole=True)
    tops = [TOP + sum(track.height + GAP for track in tracks[:row]) for row in range(len(tracks))]
    bottom = tops[-1] + tracks[-1].height
    drawn = svg(bottom + BOTTOM, "curves of every phase", *_bands(run, x, bottom))
    for row, (track, top) in enumerate(zip(tracks, tops, strict=True)):
        drawn.extend(_draw(run, track, x, top, last=row == len(tracks) - 1))
    drawn.append(text("epoch", (LEFT + RIGHT) / 2, bottom + 34, "middle"))
    name = "mIoU" if run.measure == "miou" else "accuracy"
    said = f"Last epoch of {last['phase']}: validation {name} {run.validation:.2%}, training loss {last['loss']:.4g}."
    others = "Networks trained on the way come first. " if len(run.strands) > 1 else ""
    about = f"{said} {others}The training loss includes all terms; the validation loss is cross-entropy alone."
    marks = legend(("validation", "validation images"), ("training", "training images, augmented"))
    return section("Training curves", about, marks, framed(drawn), class_="curves")


def _tracks(run: Run) -> list[Track]:
    score = _scaled(f"val_{run.measure}", 100.0)
    # Pixel accuracy does not belong in a chart of mIoU.
    both = (("training", _scaled("accuracy", 100.0)),) if run.measure == "accuracy" else ()
    tracks = [
        Track(SCORES[run.measure], 190.0, (*both, ("validation", score)), bounds=(0.0, 100.0)),
        Track("loss", 130.0, (("training", _scaled("loss")), ("validation", _scaled("val_loss"))), logarithmic=True),
    ]
    kind = next((key for key in GATES if key in run.strands[-1].lines[-1]), None)
    if kind:
        name, factor = GATES[kind]
        bounds = (0.0, 100.0 if factor == 100 else math.inf)
        tracks.append(Track(name, 64.0, (("gates", _scaled(kind, factor)),), bounds=bounds))
    return tracks


def _scaled(key: str, factor: float = 1.0) -> Read:
    return lambda line: factor * float(line[key]) if key in line else None


def _draw(run: Run, track: Track, x: AxisScale, top: float, *, last: bool) -> Iterator[Node]:
    found = [(kind, list(_points(run, read, track.logarithmic))) for kind, read in track.series]
    values = [value for _, strands in found for points in strands for _, value in points]
    if values:
        panel = Panel(x, track.scale(values, top))
        yield panel.grid((lambda value: f"{value:g}") if last else None, lambda value: f"{value:g}", track.name)
        yield from (panel.line(points, kind) for kind, strands in found for points in strands if points)


def _points(run: Run, read: Read, positive: bool) -> Iterator[list[Point]]:
    """Points of each network, at the end of each epoch."""
    before = 0
    for strand in run.strands:
        values = [(before + number, read(line)) for number, line in enumerate(strand.lines, 1)]
        yield [(x, y) for x, y in values if y is not None and math.isfinite(y) and (y > 0 or not positive)]
        before += len(strand.lines)


def _bands(run: Run, x: AxisScale, bottom: float) -> Iterator[Node]:
    """Background stripe per phase behind all charts, with the name of the phase where it fits."""
    start = 0
    phases = (list(lines) for strand in run.strands for _, lines in groupby(strand.lines, lambda line: line["phase"]))
    for number, lines in enumerate(phases):
        left, right, name = x.at(start), x.at(start + len(lines)), str(lines[0]["phase"])
        size = {"x": left, "y": 8.0, "width": right - left, "height": bottom - 8}
        band = node(
            "g",
            node("title", f"{name}: {len(lines)} epoch{'s' * (len(lines) > 1)}"),
            node("rect", **size),
            class_="band",
        )
        band.set("class", "band" if number % 2 else "band odd")
        if LETTER * len(name) < right - left:
            band.append(text(name, (left + right) / 2, 22, "middle"))
        yield band
        start += len(lines)
