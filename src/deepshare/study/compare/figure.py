"""Accuracy over gates: our points, and the paper's in a second panel."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from deepshare.study import drawing, paper
from deepshare.study.compare.definition import Study
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.rows import Row, rows
from deepshare.study.drawing import BLUE, DARK, FRAME, TICKS

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
ROUND = (5_000, 10_000, 20_000, 50_000, 100_000)


def save(study: Study, outcomes: Outcomes, folder: Path) -> list[str]:
    """Draw what can be drawn so far, as `pareto-NAME.svg` and `.png`; gives the names of the images."""
    drawn = []
    for data in study.data:
        found = [row for row in rows(study, outcomes, data) if row.runs]
        if any(row.budget is not None for row in found):
            drawing.save_figure(f"pareto-{data}", partial(draw, study, data, found), folder)
            drawn.append(data)
    return drawn


def draw(study: Study, data: str, found: Sequence[Row]) -> Figure:
    """Draw the rows of one table."""
    theirs = paper.load().find(study.published.network, study.published.data) if study.published else None
    figure = Figure(figsize=(11 if theirs else 6, 5.2), layout="constrained")
    panels = figure.subplots(1, 2 if theirs else 1, squeeze=False)[0]
    styles = _styles(study, theirs)
    _ours(panels[0], study, found, styles)
    _dress(panels[0], f"{study.data[data].title}, ours", sorted({row.budget for row in found if row.budget}))
    if theirs:
        _published(panels[1], theirs, styles)
        _dress(panels[1], f"{theirs.network_title}, {theirs.data_title}, published", ROUND)
    return figure


def _styles(study: Study, theirs: paper.Results | None) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each method, the same in both panels."""
    published = [row.method for row in theirs.rows if row.method != paper.BASELINE] if theirs else []
    known = [
        entry.paper or entry.title for name, entry in study.methods.items() if entry.drawn and study.has_budget(name)
    ]
    every = list(dict.fromkeys([*known, *published]))
    return {
        name: (COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)])
        for number, name in enumerate(every)
    }


def _ours(axes: Axes, study: Study, found: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    for row in found:
        if row.budget is None:
            _level(axes, row.title, row.test.mean)
    for method, entry in study.methods.items():
        points = sorted(
            (row for row in found if row.method == method and row.budget is not None), key=lambda r: r.gates
        )
        if points and entry.drawn:
            colour, marker = styles[entry.paper or entry.title]
            means = [row.test.mean for row in points]
            spread = [row.test.spread or 0.0 for row in points]
            gates = [row.gates for row in points]
            axes.errorbar(
                gates, means, spread, color=colour, marker=marker, capsize=3, linewidth=1.2, label=entry.title
            )


def _published(axes: Axes, theirs: paper.Results, styles: dict[str, tuple[str, str]]) -> None:
    _level(axes, "all ReLUs", theirs.baseline.score)
    for method, (colour, marker) in styles.items():
        if points := theirs.of(method):
            own = points[0].own_network
            gates, scores = [row.gates for row in points], [row.score for row in points]
            label = f"{method} (own network)" if own else method
            line = axes.plot(gates, scores, color=colour, marker=marker, linewidth=1.2, label=label)
            line[0].set_linestyle(":" if own else "-")


def _dress(axes: Axes, title: str, ticks: Sequence[int]) -> None:
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
    axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)


def _level(axes: Axes, name: str, score: float) -> None:
    """A line at the accuracy of a network with all its ReLUs."""
    axes.axhline(score, color=TICKS, linewidth=0.8, linestyle="--", zorder=0)
    where: tuple[str, str] = ("axes fraction", "data")
    axes.annotate(name, (0, score), (4, 2), where, "offset points", fontsize=7.5, color=TICKS)
