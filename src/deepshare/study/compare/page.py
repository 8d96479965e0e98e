"""Results of a study as text for a terminal, and as a Markdown page with plots."""

from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path

from deepshare.files import write_atomically
from deepshare.study.compare.curves import losses, phases
from deepshare.study.compare.outcome import Outcomes, read_all
from deepshare.study.compare.plots import save_plots
from deepshare.study.compare.runner import jobs, undecided
from deepshare.study.compare.study_file import TEACHERS, Question, Study, load_study, own_epochs
from deepshare.study.compare.tables import (
    ALIGN,
    HEADER,
    MethodRow,
    SeedMean,
    Table,
    ablation_table,
    best_validation,
    comparisons,
    private_table,
    rows,
    rows_by_images,
)
from deepshare.text import table

QUESTION_HEADER = ("", "gates", "last epoch", "best epoch", "seeds", "in the paper")
OPEN = "open"


def save(study: Study, outcomes: Outcomes, folder: Path) -> None:
    """Write `README.md` and the plots into an existing folder."""
    figures = save_plots(study, outcomes, folder)
    write_atomically(folder / "README.md", as_markdown(study, outcomes, figures, folder.parent).encode())


def as_text(study: Study, outcomes: Outcomes) -> str:
    """Format all results for a terminal."""
    parts = [f"{study.name}: {progress(study, outcomes)}"]
    for data, found in rows_by_images(study, outcomes):
        parts.append(f"{study.data[data].title}\n\n{table(HEADER, [row.cells for row in found], ALIGN)}")
        parts += ["\n".join(notes(study, found))]
        parts += [_text(more) for more in (private_table(found, study.engine), phases(study, outcomes, data)) if more]
    asked = questions(study, outcomes)
    parts += [_text(more) for more in (*([asked] if asked else []), *comparisons(study, outcomes))]
    return "\n\n".join(part for part in parts if part)


def as_markdown(study: Study, outcomes: Outcomes, figures: Sequence[str], results: Path | None = None) -> str:
    """Format all results as a Markdown page.

    Args:
        study: The study.
        outcomes: All outcomes so far.
        figures: Names of the plots.
        results: Folder with the results of all studies, for ablations of another study.
    """
    command = f"deepshare compare --study {study.source}"
    parts = [f"# Study {study.name}", study.about.strip(), progress(study, outcomes)]
    if asked := questions(study, outcomes):
        parts += [f"## {asked.title}", _markdown(asked.header, asked.lines, asked.align), QUESTIONS]
    parts += ["## Rules", _rules(study, outcomes)]
    parts.append(f"This page is written by `{command} --show`; `{command}` starts the runs.")
    for data, found in rows_by_images(study, outcomes):
        parts += [f"## {study.data[data].title}", _markdown(HEADER, [row.cells for row in found], ALIGN)]
        parts += [f"![Accuracy over gates](pareto-{data}.svg)"] if f"pareto-{data}" in figures else []
        for more in (private_table(found, study.engine), phases(study, outcomes, data)):
            parts += [f"### {more.title}", _markdown(more.header, more.lines, more.align)] if more else []
        parts += [f"![Accuracy over epochs](curves-{data}.svg)"] if f"curves-{data}" in figures else []
        lost = losses(study, outcomes, data, results and results / study.name)
        parts += ["### Where accuracy is lost", "\n".join(f"- {said}" for said in lost)] if lost else []
        parts += ["### Notes", "\n".join(f"- {note}" for note in said)] if (said := notes(study, found)) else []
    if settings := [f"- {entry.title}: {entry.tried}" for entry in study.methods.values() if entry.tried]:
        parts += ["## Settings tried", "\n".join(settings)]
    for more in comparisons(study, outcomes):
        parts += [f"## {more.title}", _markdown(more.header, more.lines, more.align)]
    parts += _ablations(study, results)
    if left := remaining(study, outcomes):
        parts += ["## What is open", "\n".join(f"- {line}" for line in left)]
    return "\n\n".join(part for part in parts if part) + "\n"


QUESTIONS = (
    "Differences are of means over seeds, in points, ± their standard error where both have several seeds, and without "
    "seeds that diverged: after the last epoch on the test images, and in the best epochs of the last phase on the "
    "validation images, with no more gates than in the end. Where the two are far apart the last epoch says little. "
    "With one seed a difference is a hint and no more."
)


def _ablations(study: Study, results: Path | None) -> list[str]:
    """The ablations of another study, beside the paper's."""
    if study.ablations is None or results is None:
        return []
    other, folder = load_study(study.ablations), results / study.ablations
    found = ablation_table(other, read_all(other, folder)) if folder.is_dir() else None
    if found is None:
        return ["## Ablations", f"In the study {other.name}, which has not been run yet."]
    page = f"All results: [study {other.name}](../{other.name}/README.md)."
    return [f"## {found.title}", _markdown(found.header, found.lines, found.align), page]


def _text(more: Table) -> str:
    return f"{more.title}\n\n{table(more.header, more.lines, more.align)}"


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
    if lost := row.diverged:
        seeds = ", ".join(map(str, sorted(lost)))
        yield f"{where}: training diverged with seed {seeds}; counted in this table, and nowhere else."
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
        "With several seeds it is the mean ± the standard deviation; error bars in plots span all seeds that "
        "did not diverge. "
        f"Bytes and rounds are predicted for private inference of one image with {study.engine}. Training is "
        "wall-clock time, including pauses and the load of other runs on the same cores."
        f"{_precision(outcomes)}{_compiled(outcomes)}"
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


def _compiled(outcomes: Outcomes) -> str:
    """Remark on runs of compiled networks; empty if there are none."""
    runs = {job.name: outcome.run for job, outcome in outcomes.items() if outcome.run}
    compiled = [name for name, run in runs.items() if run.environment.get("compile")]
    named = f": {', '.join(compiled)}" if len(compiled) < len(runs) else ""
    said = (
        f" {len(compiled)} of {len(runs)} runs were of compiled networks (`--compile`), which round differently{named}."
    )
    return said if compiled else ""


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> str:
    sides = ["---:" if side == ">" else "---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, sides, *lines))


def questions(study: Study, outcomes: Outcomes) -> Table | None:
    """Differences of accuracy that the study is for, on its first images; None if it asks nothing."""
    if not study.questions:
        return None
    found = {(row.method, row.budget): row for row in rows(study, outcomes, next(iter(study.data))) if row.runs}
    lines = [_answer(study, question, found) for question in study.questions]
    return Table("Questions and answers so far", QUESTION_HEADER, lines, "<>>>>>")


def _answer(study: Study, question: Question, found: dict[tuple[str, int | None], MethodRow]) -> tuple[str, ...]:
    names = (
        (question.first, question.at),
        (question.second, question.at if question.second_at is None else question.second_at),
    )
    first, second = (found.get((name, at if study.has_budget(name) else None)) for name, at in names)
    first, second = (row and row.steady for row in (first, second))
    said = "" if question.paper is None else f"{question.paper:+.2f}"
    if not first or not second or not first.runs or not second.runs:
        return question.about, f"{question.at:,}", OPEN, "", "", said
    seeds = (len(first.runs), len(second.runs))
    last = _difference(first.test, second.test, seeds)
    bests = best_validation(study, first), best_validation(study, second)
    best = _difference(bests[0], bests[1], seeds) if bests[0] and bests[1] else ""
    return question.about, f"{question.at:,}", last, best, " and ".join(map(str, seeds)), said


def _difference(first: SeedMean, second: SeedMean, seeds: tuple[int, int]) -> str:
    difference = f"{first.mean - second.mean:+.2f}"
    if first.spread is None or second.spread is None:
        return difference
    # The standard error of a difference of two means.
    error = sqrt(first.spread**2 / seeds[0] + second.spread**2 / seeds[1])
    return f"{difference} ± {error:.2f}"


def remaining(study: Study, outcomes: Outcomes) -> list[str]:
    """Passes of the study with runs that are not finished, each with their number."""
    known, waiting = set(jobs(study, outcomes)), undecided(study, outcomes)
    lines = []
    for part in study.passes:
        mine = [job for job in study.jobs_of(part) if job in known]
        left = sum(job not in outcomes for job in mine)
        if part in waiting:
            lines.append(f"{part.about}: not selected yet")
        elif left:
            lines.append(f"{part.about}: {left} of {len(mine)} runs")
    return lines
