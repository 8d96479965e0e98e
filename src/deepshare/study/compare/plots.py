"""Plots of a study: accuracy over gates beside the paper's, and validation accuracy over the epochs, phase by phase."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepshare.study import drawing
from deepshare.study.compare.outcome import Outcomes, RunOutcome
from deepshare.study.compare.study_file import GELU_TEACHER, TEACHER, TEACHERS, Job, Study
from deepshare.study.compare.tables import MethodRow, published_table, rows
from deepshare.study.drawing import Styles, dress, round_ticks, styles
from deepshare.study.published import paper
from deepshare.study.published.figure import draw_methods

MARGIN = 2.0  # points above and below what is drawn
APART = 0.035  # least distance of two labels, as a share of the axis


def save_plots(study: Study, outcomes: Outcomes, folder: Path) -> list[str]:
    """Write `pareto-NAME` and `curves-NAME`, as SVG and PNG, for all training images with results.

    Returns:
        Names of the plots.
    """
    drawn = []
    for data in study.data:
        found = [row for row in rows(study, outcomes, data) if row.runs]
        if any(row.budget for row in found):
            drawing.save_figure(f"pareto-{data}", partial(draw, study, data, found), folder)
            drawn.append(f"pareto-{data}")
        if any(_curve_rows(study, found)):
            teachers = {name: outcomes.get(Job(name, data)) for name in TEACHERS}
            drawing.save_figure(f"curves-{data}", partial(draw_curves, study, data, found, teachers), folder)
            drawn.append(f"curves-{data}")
    return drawn


def main_budget(found: Sequence[MethodRow]) -> int:
    """The budget that has most runs; the smallest of several, and 0 without any."""
    counts = Counter(row.budget for row in found if row.budget for _ in row.runs)
    return min((budget for budget, count in counts.items() if count == max(counts.values())), default=0)


def draw(study: Study, data: str, found: Sequence[MethodRow]) -> Figure:
    """Draw the rows of one table: few methods, and none of the seeds that diverged."""
    published = _drawn_part(study)
    figure = Figure(figsize=(11.5 if published else 6.5, 4.6), layout="constrained")
    panels = figure.subplots(1, 2 if published else 1, squeeze=False)[0]
    style = styles_of(study)
    _ours(panels[0], study, found, style)
    budgets = sorted({row.budget for row in found if row.budget and not _has_all(row)})
    dress(panels[0], f"{study.data[data].title}, ours", budgets, f"test {_measure(found)}")
    if published:
        draw_methods(panels[1], published, style)
        title = f"{published.network_title}, {published.data_title}, published"
        dress(panels[1], title, round_ticks(published.counts), f"test {paper.MEASURES[published.measure]}")
    for axes in panels:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def draw_curves(
    study: Study, data: str, found: Sequence[MethodRow], teachers: Mapping[str, RunOutcome | None]
) -> Figure:
    """Draw the validation accuracy of the first seed of each method at the main budget, with a dot at a phase's end."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    style = styles_of(study)
    shown = _curve_rows(study, found)
    reached: list[float] = []
    start = teachers.get(TEACHER)
    if start and start.curve and any(row.before for row in shown):
        _one_curve(axes, start, 0, drawing.TICKS, "the network that some start from", "--")
    for row in shown:
        outcome = next(outcome for outcome in row.outcomes if outcome.curve)
        colour, _ = style[study.methods[row.method].paper or row.title]
        reached += _one_curve(axes, outcome, row.before, colour, row.title)
    dress(axes, f"{study.data[data].title}, {main_budget(found):,} gates", [], f"validation {_measure(found)}")
    axes.set_xscale("linear")
    axes.set_xlabel("epochs, those of the network that it starts from included; dots end a phase", fontsize=9)
    axes.set_xlim(0, study.epochs + (0 if study.count_start else max(row.before for row in shown)) + 1)
    # First epochs, and single epochs in which a method collapses, may leave the plot.
    axes.set_ylim(max(0.0, min(reached) - 3 * MARGIN), max(reached) + MARGIN)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    return figure


def _one_curve(axes: Axes, outcome: RunOutcome, before: int, colour: str, label: str, line: str = "-") -> list[float]:
    """Draw a curve; returns its values at the end of each phase, and its best one."""
    phases = outcome.curve or {}
    values = [value for phase in phases.values() for value in phase]
    axes.plot(range(before + 1, before + 1 + len(values)), values, line, color=colour, linewidth=1.3, label=label)
    end = 0
    for phase in phases.values():
        end += len(phase)
        axes.plot(before + end, values[end - 1], "o", color=colour, markersize=4)
    return [*(phase[-1] for phase in phases.values()), max(values)]


def styles_of(study: Study) -> Styles:
    """Colour and marker of each method, the same in all plots."""
    drawn = (entry for name, entry in study.methods.items() if entry.drawn and study.has_budget(name))
    return styles([*paper.load().plotted, *(entry.paper or entry.title for entry in drawn)])


def _drawn_part(study: Study) -> paper.PublishedTable | None:
    """The paper's table with the baseline and the drawn methods of the study alone."""
    published = published_table(study)
    known = {entry.paper for entry in study.methods.values() if entry.drawn}
    kept = [row for row in published.rows if row.method in known or row.method == paper.BASELINE] if published else []
    return published.model_copy(update={"rows": tuple(kept)}) if published and len(kept) > 1 else None


def _curve_rows(study: Study, found: Sequence[MethodRow]) -> list[MethodRow]:
    at = main_budget(found)
    known = [row for row in found if row.method not in TEACHERS and any(outcome.curve for outcome in row.outcomes)]
    return [row for row in known if row.budget == at and study.methods[row.method].drawn]


def _has_all(row: MethodRow) -> bool:
    return row.budget == row.runs[0].neurons


def _measure(found: Sequence[MethodRow]) -> str:
    return paper.MEASURES[found[0].runs[0].score]


def _ours(axes: Axes, study: Study, found: Sequence[MethodRow], style: Styles) -> None:
    ends = [row for row in found if not row.budget or _has_all(row)]
    plain = [row for row in ends if row.method not in TEACHERS] or [row for row in ends if row.method != GELU_TEACHER]
    lines = {row.title: row.test.mean for row in plain if not row.diverged}
    reached = list(lines.values())
    for method, entry in study.methods.items():
        mine = [row for row in found if row.method == method and row not in ends]
        points = sorted((row for row in (row.steady for row in mine) if row.runs), key=lambda row: row.gates)
        if points and entry.drawn:
            colour, marker = style[entry.paper or entry.title]
            means = [row.test.mean for row in points]
            reach = list(zip(*(_reach(row) for row in points), strict=True))
            gates = [row.gates for row in points]
            axes.errorbar(gates, means, reach, color=colour, marker=marker, capsize=3, linewidth=1.2, label=entry.title)
            reached += [run.test for row in points for run in row.runs]
    if reached:
        axes.set_ylim(max(0.0, min(reached) - MARGIN), max(reached) + MARGIN)
    _levels(axes, lines)


def _levels(axes: Axes, lines: Mapping[str, float]) -> None:
    """Draw labelled lines for networks with all gates or with none, their labels apart."""
    bottom, top = axes.get_ylim()
    before = bottom - top
    for name, score in sorted(lines.items(), key=lambda item: item[1]):
        axes.axhline(score, color=drawing.TICKS, linewidth=0.8, linestyle="--", zorder=0)
        before = max(score, before + APART * (top - bottom))
        axes.annotate(
            name, (1, before), (4, 0), ("axes fraction", "data"), "offset points",
            fontsize=7.5, color=drawing.TICKS, va="center",
        )  # fmt: skip


def _reach(row: MethodRow) -> tuple[float, float]:
    tests = [run.test for run in row.runs]
    return row.test.mean - min(tests), max(tests) - row.test.mean
