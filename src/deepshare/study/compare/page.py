"""Results of a study as text for a terminal, and as a Markdown page with plots."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepshare.files import write_atomically
from deepshare.study import drawing
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.runner import jobs, undecided
from deepshare.study.compare.study_file import TEACHERS, Study, own_epochs
from deepshare.study.compare.tables import ALIGN, HEADER, MethodRow, comparisons, published_table, rows, rows_by_images
from deepshare.study.published import paper
from deepshare.study.published.pareto import Styles, draw_methods, dress, level, round_ticks, styles
from deepshare.text import table


def save(study: Study, outcomes: Outcomes, folder: Path) -> None:
    """Write `README.md`, `pareto-NAME.svg` and `pareto-NAME.png` into an existing folder."""
    figures = save_plots(study, outcomes, folder)
    write_atomically(folder / "README.md", as_markdown(study, outcomes, figures).encode())


def as_text(study: Study, outcomes: Outcomes) -> str:
    """Format all results for a terminal."""
    parts = [f"{study.name}: {progress(study, outcomes)}"]
    for data, found in rows_by_images(study, outcomes):
        parts.append(f"{study.data[data].title}\n\n{table(HEADER, [row.cells for row in found], ALIGN)}")
        parts += ["\n".join(notes(study, found))]
    for more in comparisons(study, outcomes):
        parts.append(f"{more.title}\n\n{table(more.header, more.lines, more.align)}")
    return "\n\n".join(part for part in parts if part)


def as_markdown(study: Study, outcomes: Outcomes, figures: Sequence[str]) -> str:
    """Format all results as a Markdown page.

    Args:
        study: The study.
        outcomes: All outcomes so far.
        figures: Names of the training images with a plot, `pareto-NAME.svg`.
    """
    command = f"deepshare compare --study {study.source}"
    parts = [f"# Study {study.name}", study.about.strip(), _rules(study, outcomes)]
    written = f"This page is written by `{command} --show`; `{command}` starts the runs."
    parts.append(f"{progress(study, outcomes)} {written}")
    for data, found in rows_by_images(study, outcomes):
        parts += [f"## {study.data[data].title}", _markdown(HEADER, [row.cells for row in found], ALIGN)]
        parts += ["\n".join(f"- {note}" for note in notes(study, found))]
        parts += [f"![Accuracy over gates](pareto-{data}.svg)"] if data in figures else []
    for more in comparisons(study, outcomes):
        parts += [f"## {more.title}", _markdown(more.header, more.lines, more.align)]
    return "\n\n".join(part for part in parts if part) + "\n"


def progress(study: Study, outcomes: Outcomes) -> str:
    """Progress of the study in a sentence or two."""
    every = jobs(study, outcomes)
    done = [outcomes[job] for job in every if job in outcomes]
    refused = sum(outcome.run is None for outcome in done)
    without = f", {refused} of them without a result" if refused else ""
    later = [part.about for part in undecided(study, outcomes)]
    more = f" Chosen when these are finished: {'; '.join(later)}." if later else ""
    return f"{len(done)} of {len(every)} runs are finished{without}.{more}"


def notes(study: Study, found: Sequence[MethodRow]) -> list[str]:
    """Remarks below a table: notes of the methods, corrections by rank, and reasons for missing results."""
    entries = {row.method: study.methods[row.method] for row in found if row.method not in TEACHERS}
    said = [f"{entry.title}: {entry.note}" for entry in entries.values() if entry.note]
    return said + [note for row in found for note in _row_notes(study, row)]


def _row_notes(study: Study, row: MethodRow) -> Iterator[str]:
    where = row.title if row.budget is None else f"{row.title} at {row.budget:,}"
    searched = [outcome.searched for outcome in row.outcomes if outcome.searched is not None]
    if searched and row.budget is not None:
        left = f"{min(searched):,}" if min(searched) == max(searched) else f"{min(searched):,} to {max(searched):,}"
        put_right = "cut" if max(searched) > row.budget else "filled up"
        yield f"{where}: the search left {left} gates, which were {put_right} by rank to the budget."
    epochs = {sum(run.epochs.values()) for run in row.runs if row.method not in TEACHERS}
    if epochs and min(epochs) < (planned := own_epochs(study, row.outcomes[0].job)):
        yield f"{where}: its search ended early, so that it had {min(epochs)} epochs instead of {planned}."
    if row.refused:
        yield f"{where}, no result: {row.refused}"


def _rules(study: Study, outcomes: Outcomes) -> str:
    rule = (
        f"Every method is trained for {study.epochs} epochs and learns from the teacher, but the terms are not equal: "
        "methods that start from the trained teacher have its epochs in addition, and the others start from scratch "
        "(column epochs)."
    )
    if study.count_start:
        rule = (
            f"Every method has {study.epochs} epochs in all: one that starts from the teacher has the teacher's "
            "counted, and the others start from scratch. Epochs of networks that only teach are not counted."
        )
    return (
        f"{rule} Accuracy is measured on the test images after the last epoch, in percent; no choice depends on it. "
        "With several seeds it is the mean ± the standard deviation; error bars in plots span all seeds. "
        f"Bytes and rounds are predicted for private inference of one image with {study.engine}. Training is "
        f"wall-clock time, including pauses and the load of other runs on the same cores.{_precision(outcomes)}"
    )


def _precision(outcomes: Outcomes) -> str:
    """Remark on runs in bfloat16, and on those that are not; empty if all are in float32."""
    runs = {job.name: outcome.run for job, outcome in outcomes.items() if outcome.run}
    halves = [name for name, run in runs.items() if run.environment.get("precision") == "bf16-mixed"]
    if not halves:
        return ""
    wide = [name for name in runs if name not in halves]
    fewer, others = (wide, "float32") if len(wide) < len(halves) else (halves, "bfloat16")
    named = f"; in {others} {', '.join(fewer)}" if fewer and wide else ""
    said = f"{len(halves)} of {len(runs)} runs were trained in bfloat16 (`--precision bf16-mixed`){named}"
    return f" {said}. Accuracy is always measured in float32."


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> str:
    sides = ["---:" if side == ">" else "---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, sides, *lines))


def save_plots(study: Study, outcomes: Outcomes, folder: Path) -> list[str]:
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
