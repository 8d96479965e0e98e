"""Plots of a study: accuracy over gates, with the paper's results in a second panel."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepshare.study import drawing
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.study_file import Study
from deepshare.study.compare.tables import MethodRow, published_table, rows
from deepshare.study.published import paper
from deepshare.study.published.pareto import Styles, draw_methods, dress, level, round_ticks, styles


def save(study: Study, outcomes: Outcomes, folder: Path) -> list[str]:
    """Write `pareto-NAME.svg` and `.png` for all training images with results, and return their names."""
    drawn = []
    for data in study.data:
        found = [row for row in rows(study, outcomes, data) if row.runs]
        if any(row.budget is not None for row in found):
            drawing.save_figure(f"pareto-{data}", partial(draw, study, data, found), folder)
            drawn.append(data)
    return drawn


def draw(study: Study, data: str, found: Sequence[MethodRow]) -> Figure:
    """Draw the rows of one table."""
    published = published_table(study)
    figure = Figure(figsize=(12.5 if published else 6.5, 5.2), layout="constrained")
    panels = figure.subplots(1, 2 if published else 1, squeeze=False)[0]
    style = styles_of(study)
    _ours(panels[0], study, found, style)
    budgets = sorted({row.budget for row in found if row.budget})
    dress(panels[0], f"{study.data[data].title}, ours", budgets, f"test {_measure(found)}")
    if published:
        draw_methods(panels[1], published, style)
        title = f"{published.network_title}, {published.data_title}, published"
        dress(panels[1], title, round_ticks(published.counts), f"test {paper.MEASURES[published.measure]}")
    for axes in panels:
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    return figure


def _measure(found: Sequence[MethodRow]) -> str:
    return paper.MEASURES[found[0].runs[0].score]


def styles_of(study: Study) -> Styles:
    """Colour and marker of each method, the same in both panels."""
    drawn = (entry for name, entry in study.methods.items() if entry.drawn and study.has_budget(name))
    return styles([entry.paper or entry.title for entry in drawn])


def _ours(axes: Axes, study: Study, found: Sequence[MethodRow], style: Styles) -> None:
    for row in found:
        if row.budget is None:
            level(axes, row.title, row.test.mean)
    for method, entry in study.methods.items():
        points = sorted(
            (row for row in found if row.method == method and row.budget is not None), key=lambda r: r.gates
        )
        if points and entry.drawn:
            colour, marker = style[entry.paper or entry.title]
            means = [row.test.mean for row in points]
            reach = list(zip(*(_reach(row) for row in points), strict=True))
            gates = [row.gates for row in points]
            axes.errorbar(gates, means, reach, color=colour, marker=marker, capsize=3, linewidth=1.2, label=entry.title)


def _reach(row: MethodRow) -> tuple[float, float]:
    tests = [run.test for run in row.runs]
    return row.test.mean - min(tests), max(tests) - row.test.mean
