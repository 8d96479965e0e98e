"""The paper's tables that compare methods, drawn: accuracy over gates, with our own runs of the same networks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from deepshare.sharing.table import table
from deepshare.study import drawing, paper
from deepshare.study.drawing import BLUE, DARK, FRAME, TICKS
from deepshare.training.listing import Finished, list_recipes

# Colours that most colour-blind readers tell apart; the markers differ, too.
COLOURS = (
    BLUE,
    "#c0501f",
    "#2a8a57",
    "#b8478f",
    "#8a6d00",
    "#3aa0c9",
    "#6b4fa0",
    "#7a7a7a",
    "#d98200",
    "#222222",
    "#7fb800",
)
MARKERS = "osD^vP*Xhd"
OURS = "run with this code"
SAME_SIZE = 0.01  # networks are the same if their counts of ReLUs differ by less, as the paper's are rounded
MEASURES = {"accuracy": "accuracy", "miou": "mIoU"}

Styles = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Panel:
    """A table of the paper, and our finished runs of the same network on the same data."""

    results: paper.Results
    ours: tuple[Finished, ...]


def panels(records: Path | None = None) -> list[Panel]:
    """All tables that compare methods, with the recorded runs that belong to each.

    Args:
        records: Folder of recorded runs; by default the packaged one.
    """
    listed = list_recipes(records)
    found = []
    for results in paper.load().results:
        same = (entry for entry in listed if (entry.recipe.model.name, entry.recipe.data.name) == _setup(results))
        runs = (run for entry in same for run in entry.runs if _is_same_size(run, results))
        found.append(Panel(results, tuple(runs)))
    return found


def styles(methods: Sequence[str]) -> Styles:
    """A colour and a marker for each method."""
    return {
        name: (COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)])
        for number, name in enumerate(dict.fromkeys(methods))
    }


def draw(found: Sequence[Panel]) -> Figure:
    """Draw all tables, one panel each, with one legend for all."""
    figure = Figure(figsize=(11, 9.2), layout="constrained")
    style = styles([paper.OURS, *(method for method in paper.load().methods if method != paper.BASELINE)])
    for axes, panel in zip(figure.subplots(-(-len(found) // 2), 2).flat, found, strict=True):
        results = panel.results
        draw_methods(axes, results, style)
        for run in panel.ours:
            axes.plot(run.gates, run.test, color=DARK, marker="D", markersize=9, fillstyle="none", linestyle="")
        counts = [row.gates for row in results.rows if row.method != paper.BASELINE] + [r.gates for r in panel.ours]
        ticks = round_ticks(counts)
        dress(axes, f"{results.network_title}, {results.data_title} (table {results.table})", ticks)
        axes.set_xlim(0.9 * ticks[0], 1.1 * ticks[-1])
        axes.set_ylabel(f"{MEASURES[results.measure]}, %", fontsize=9)
    figure.legend(handles=_marks(found, style), fontsize=8, frameon=False, loc="outside lower center", ncols=5)
    return figure


def draw_methods(axes: Axes, results: paper.Results, style: Styles) -> None:
    """Draw a table: a line for each method, dotted where it has a network of its own."""
    level(axes, "all ReLUs", results.baseline.score)
    for method, (colour, marker) in style.items():
        if points := results.of(method):
            own = points[0].own_network
            gates, scores = [row.gates for row in points], [row.score for row in points]
            line = axes.plot(gates, scores, color=colour, marker=marker, linewidth=1.2, label=_label(method, own))
            line[0].set_linestyle(":" if own else "-")


def dress(axes: Axes, title: str, ticks: Sequence[int]) -> None:
    """Give a panel its title, its axis of gates and a quiet frame."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gates, _: f"{gates:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, color=DARK, fontsize=10)
    axes.set_xlabel("gates", fontsize=9)
    axes.set_ylabel("test accuracy, %", fontsize=9)
    axes.tick_params(colors=TICKS, labelsize=8)
    axes.grid(color=FRAME, linewidth=0.4)
    for spine in axes.spines.values():
        spine.set_color(FRAME)


def level(axes: Axes, name: str, score: float) -> None:
    """A line at the accuracy of a network with all its ReLUs."""
    axes.axhline(score, color=TICKS, linewidth=0.8, linestyle="--", zorder=0)
    where: tuple[str, str] = ("axes fraction", "data")
    axes.annotate(name, (0, score), (4, 2), where, "offset points", fontsize=7.5, color=TICKS)


def round_ticks(counts: Sequence[int]) -> list[int]:
    """Round numbers that span all counts.

    >>> round_ticks([6000, 78000])
    [5000, 10000, 20000, 50000, 100000]
    """
    powers = range(int(math.log10(min(counts))), int(math.log10(max(counts))) + 2)
    steps = sorted(step * 10**power for power in powers for step in (1, 2, 5))
    first = max((step for step in steps if step <= min(counts)), default=steps[0])
    last = min(step for step in steps if step >= max(counts))
    return [step for step in steps if first <= step <= last]


def as_table(found: Sequence[Panel]) -> str:
    """Every row of the tables, and our runs."""
    cells = [cell for panel in found for cell in _lines(panel)]
    return table(("network", "data", "method", "gates", "%", "from"), cells, "<<<>><")


def save(found: Sequence[Panel], folder: Path, command: str) -> None:
    """Write published.json, published.svg and published.png into an existing folder."""
    header = ("network", "data", "method", "gates", "score", "from")
    rows = [dict(zip(header, line, strict=True)) for panel in found for line in _values(panel)]
    drawing.save("published", {"rows": rows}, lambda: draw(found), folder, command)


def _values(panel: Panel) -> list[tuple[Any, ...]]:
    results = panel.results
    names = (results.network_title, results.data_title)
    rows = [
        (*names, _label(row.method, row.own_network), row.gates, row.score, f"table {results.table}")
        for row in sorted(results.rows, key=lambda row: -row.gates)
    ]
    return [*rows, *((*names, f"{OURS}: {run.recipe}", run.gates, run.test, run.date) for run in panel.ours)]


def _lines(panel: Panel) -> list[tuple[str, ...]]:
    return [(*names, f"{gates:,}", f"{score:.2f}", source) for *names, gates, score, source in _values(panel)]


def _marks(found: Sequence[Panel], style: Styles) -> list[Line2D]:
    rows = {row.method: row for panel in found for row in panel.results.rows}
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle=":" if own else "-", label=_label(method, own))
        for method, (colour, marker) in style.items()
        for own in [rows[method].own_network]
    ]
    ours = Line2D([], [], color=DARK, marker="D", fillstyle="none", linestyle="", label=OURS)
    return [*marks, ours] if any(panel.ours for panel in found) else marks


def _label(method: str, own: bool) -> str:
    return f"{method} (own network)" if own else method


def _setup(results: paper.Results) -> tuple[str, str]:
    return results.network, results.data


def _is_same_size(run: Finished, results: paper.Results) -> bool:
    return abs(run.neurons / results.baseline.gates - 1) < SAME_SIZE
