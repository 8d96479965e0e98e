"""Accuracy over gates: colours and markers of methods, axes, and the paper's curves."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from deepshare.study.drawing import BLUE, DARK, FRAME, TICKS
from deepshare.study.published import paper

# Distinguishable for most colour-blind readers; the markers differ as well.
COLOURS = (
    BLUE,
    "#a9a35c",
    "#2a8a57",
    "#b8478f",
    "#8a6d00",
    "#3aa0c9",
    "#6b4fa0",
    "#7a7a7a",
    "#d98200",
    "#222222",
    "#7fb800",
    "#9c2a2a",
    "#00a08a",
    "#e58fb0",
    "#8fb0e5",
    "#c0501f",
)
MARKERS = "osD^vP*Xhd"

Styles = Mapping[str, tuple[str, str]]


def styles(more: Sequence[str] = ()) -> Styles:
    """Colour and marker of each method of the paper, the same in all plots, and of further methods."""
    published = (method for method in paper.load().methods if method != paper.BASELINE)
    return {
        name: (COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)])
        for number, name in enumerate(dict.fromkeys([paper.OURS, *published, *more]))
    }


def draw_methods(axes: Axes, table: paper.PublishedTable, style: Styles) -> None:
    """Draw a table of the paper: one line per method, dotted where it uses a network of its own."""
    level(axes, "all ReLUs", table.baseline.score)
    for method, (colour, marker) in style.items():
        if points := table.of(method):
            gates, scores = [row.gates for row in points], [row.score for row in points]
            line = axes.plot(gates, scores, color=colour, marker=marker, linewidth=1.2, label=points[0].title)
            line[0].set_linestyle(":" if points[0].own_network else "-")


def dress(axes: Axes, title: str, ticks: Sequence[int], measure: str) -> None:
    """Set title, logarithmic gate axis, labels and frame of a panel."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gates, _: f"{gates:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, color=DARK, fontsize=10)
    axes.set_xlabel("gates", fontsize=9)
    axes.set_ylabel(f"{measure}, %", fontsize=9)
    axes.tick_params(colors=TICKS, labelsize=8)
    axes.grid(color=FRAME, linewidth=0.4)
    for spine in axes.spines.values():
        spine.set_color(FRAME)


def level(axes: Axes, name: str, score: float) -> None:
    """Draw a labelled horizontal line at the accuracy of a network with all its ReLUs."""
    axes.axhline(score, color=TICKS, linewidth=0.8, linestyle="--", zorder=0)
    where: tuple[str, str] = ("axes fraction", "data")
    axes.annotate(name, (1, score), (4, 0), where, "offset points", fontsize=7.5, color=TICKS, va="center")


def round_ticks(counts: Sequence[int]) -> list[int]:
    """Round tick values that span all counts.

    >>> round_ticks([6000, 78000])
    [5000, 10000, 20000, 50000, 100000]
    """
    powers = range(int(math.log10(min(counts))), int(math.log10(max(counts))) + 2)
    steps = sorted(step * 10**power for power in powers for step in (1, 2, 5))
    first = max(step for step in steps if step <= min(counts))
    last = min(step for step in steps if step >= max(counts))
    return [step for step in steps if first <= step <= last]
