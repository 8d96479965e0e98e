"""Plots of the paper's tables: accuracy over gates, with recorded runs of the same networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from deepshare.study import drawing
from deepshare.study.drawing import DARK, TICKS, Styles, dress, level, round_ticks, styles
from deepshare.study.published import paper
from deepshare.text import table
from deepshare.training.catalog import Finished, Listed, list_recipes

RUN_HERE = "run with this code"
SAME_SIZE = 0.01  # relative difference of ReLU counts within which networks are the same; the paper's are rounded


@dataclass(frozen=True)
class PublishedPanel:
    """A table of the paper with the finished runs of the same network and data set."""

    published: paper.PublishedTable
    ours: tuple[Finished, ...]


def panels(records: Path | None = None) -> list[PublishedPanel]:
    """Collect the paper's tables with the recorded runs that belong to each.

    Args:
        records: Folder of recorded runs; by default the packaged one.
    """
    listed = list_recipes(records)
    return [PublishedPanel(published, tuple(_runs(published, listed))) for published in paper.load().results]


def _runs(published: paper.PublishedTable, listed: Sequence[Listed]) -> list[Finished]:
    same = [entry for entry in listed if (entry.recipe.model.name, entry.recipe.data.name) == published.setup]
    return [run for entry in same for run in entry.runs if _belongs(run, published)]


def _belongs(run: Finished, published: paper.PublishedTable) -> bool:
    """Return True if a run used the table's network at the same size, and the images of its recipe."""
    changed = any(key.startswith(("data.", "model.")) for key in run.overrides)
    return not changed and abs(run.neurons / published.baseline.gates - 1) < SAME_SIZE


def draw(found: Sequence[PublishedPanel]) -> Figure:
    """Draw one panel per table, with a common legend."""
    rows = -(-len(found) // 2)
    figure = Figure(figsize=(11, 4.4 * rows + 0.4), layout="constrained")
    style = styles(paper.load().plotted)
    grid = figure.subplots(rows, 2, squeeze=False).flatten().tolist()
    for axes, panel in zip(grid, found, strict=False):
        published = panel.published
        draw_methods(axes, published, style)
        for row in paper.load().later_than(published):
            axes.plot(row.gates, row.score, color=TICKS, marker="s", markersize=6, fillstyle="none", linestyle="")
            axes.annotate(
                row.method, (row.gates, row.score), (5, -9), textcoords="offset points", fontsize=7, color=TICKS
            )
        for run in panel.ours:
            axes.plot(run.gates, run.test, color=DARK, marker="D", markersize=9, fillstyle="none", linestyle="")
        ticks = round_ticks([*published.counts, *(run.gates for run in panel.ours)])
        title = f"{published.network_title}, {published.data_title} (table {published.table})"
        dress(axes, title, ticks, paper.MEASURES[published.measure])
        axes.set_xlim(0.9 * ticks[0], 1.1 * ticks[-1])
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    figure.legend(handles=_marks(found, style), fontsize=8, frameon=False, loc="outside lower center", ncols=5)
    return figure


def draw_methods(axes: Axes, table: paper.PublishedTable, style: Styles) -> None:
    """Draw a table of the paper: one line per method, dotted where it uses a network of its own."""
    level(axes, "all ReLUs", table.baseline.score)
    for method, (colour, marker) in style.items():
        if points := table.of(method):
            gates, scores = [row.gates for row in points], [row.score for row in points]
            line = axes.plot(gates, scores, color=colour, marker=marker, linewidth=1.2, label=points[0].title)
            line[0].set_linestyle(":" if points[0].own_network else "-")


def as_table(found: Sequence[PublishedPanel]) -> str:
    """Format all rows of the tables, and the runs, as text."""
    values = (*_all_values(found), *_later())
    cells = [(*names, f"{gates:,}", f"{score:.2f}", source) for *names, gates, score, source in values]
    return table(("network", "data", "method", "gates", "%", "from"), cells, "<<<>><")


def save(found: Sequence[PublishedPanel], folder: Path, command: str) -> None:
    """Write published.json, published.svg and published.png into an existing folder."""
    header = ("network", "data", "method", "gates", "score", "from")
    rows = [dict(zip(header, line, strict=True)) for line in (*_all_values(found), *_later())]
    drawing.save("published", {"rows": rows}, lambda: draw(found), folder, command)


def _values(panel: PublishedPanel) -> list[tuple[Any, ...]]:
    published = panel.published
    names = (published.network_title, published.data_title)
    rows = [
        (*names, row.title, row.gates, row.score, f"table {published.table}")
        for row in sorted(published.rows, key=lambda row: -row.gates)
    ]
    return [*rows, *((*names, f"{RUN_HERE}: {run.recipe}", run.gates, run.test, run.date) for run in panel.ours)]


def _all_values(found: Sequence[PublishedPanel]) -> list[tuple[Any, ...]]:
    return [line for panel in found for line in _values(panel)]


def _later() -> list[tuple[Any, ...]]:
    """Rows that are not the paper's, after all of its own."""
    return [
        (row.network_title, row.data_title, row.method, row.gates, row.score, f"published: {row.source}")
        for row in paper.load().later
    ]


def _marks(found: Sequence[PublishedPanel], style: Styles) -> list[Line2D]:
    rows = {row.method: row for panel in found for row in panel.published.rows}
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle=":" if row.own_network else "-", label=row.title)
        for row, (colour, marker) in ((rows[method], look) for method, look in style.items() if method in rows)
    ]
    ours = Line2D([], [], color=DARK, marker="D", fillstyle="none", linestyle="", label=RUN_HERE)
    return [*marks, ours] if any(panel.ours for panel in found) else marks
