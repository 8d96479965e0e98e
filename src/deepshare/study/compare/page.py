"""The results of a study so far as text, and as the page that stands beside them."""

from collections.abc import Iterator, Sequence

from deepshare.study.compare.beside import tables_beside
from deepshare.study.compare.definition import TEACHER, TEACHERS, Job, Study
from deepshare.study.compare.jobs import jobs, undecided
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.recipes import own_epochs
from deepshare.study.compare.rows import ALIGN, HEADER, Row, rows
from deepshare.text import table


def as_text(study: Study, outcomes: Outcomes) -> str:
    """Everything for a terminal."""
    parts = [f"{study.name}: {progress(study, outcomes)}"]
    for data, found in tables(study, outcomes):
        parts.append(f"{study.data[data].title}\n\n{table(HEADER, [row.cells for row in found], ALIGN)}")
        parts += ["\n".join(notes(study, found))]
    for beside in tables_beside(study, outcomes):
        parts.append(f"{beside.title}\n\n{table(beside.header, beside.lines, beside.align)}")
    return "\n\n".join(part for part in parts if part)


def as_markdown(study: Study, outcomes: Outcomes, figures: Sequence[str]) -> str:
    """The page.

    Args:
        study: The study.
        outcomes: What there is so far.
        figures: The images that there is a figure of, `pareto-NAME.svg`.
    """
    command = f"deepshare compare --study {study.source}"
    parts = [f"# Study {study.name}", study.about.strip(), _rules(study, outcomes)]
    parts.append(f"{progress(study, outcomes)} This page is written by `{command} --show`, and runs by `{command}`.")
    for data, found in tables(study, outcomes):
        parts += [f"## {study.data[data].title}", _markdown(HEADER, [row.cells for row in found], ALIGN)]
        parts += ["\n".join(f"- {note}" for note in notes(study, found))]
        parts += [f"![Accuracy over gates](pareto-{data}.svg)"] if data in figures else []
    for beside in tables_beside(study, outcomes):
        parts += [f"## {beside.title}", _markdown(beside.header, beside.lines, beside.align)]
    return "\n\n".join(part for part in parts if part) + "\n"


def tables(study: Study, outcomes: Outcomes) -> Iterator[tuple[str, list[Row]]]:
    """Images that there are results for, with their rows."""
    for data in study.data:
        if found := rows(study, outcomes, data):
            yield data, found


def progress(study: Study, outcomes: Outcomes) -> str:
    """How much is done, in a sentence or two."""
    every = jobs(study, outcomes)
    done = [outcomes[job] for job in every if job in outcomes]
    refused = sum(outcome.run is None for outcome in done)
    without = f", {refused} of them without a result" if refused else ""
    later = [part.about for part in undecided(study, outcomes)]
    more = f" Chosen when these are finished: {'; '.join(later)}." if later else ""
    return f"{len(done)} of {len(every)} runs are finished{without}.{more}"


def notes(study: Study, found: Sequence[Row]) -> list[str]:
    """What readers should know: the methods' own notes, what was cut by rank, and why results are missing."""
    entries = {row.method: study.methods[row.method] for row in found if row.method not in TEACHERS}
    said = [f"{entry.title}: {entry.note}" for entry in entries.values() if entry.note]
    return said + [note for row in found for note in _row_notes(study, row)]


def _row_notes(study: Study, row: Row) -> Iterator[str]:
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
    teachers = [outcomes[job] for job in (Job(TEACHER, data) for data in study.data) if job in outcomes]
    lengths = {sum(outcome.run.epochs.values()) for outcome in teachers if outcome.run}
    before = (
        f", after the {' or '.join(map(str, sorted(lengths)))} epochs of the teacher"
        if lengths
        else ", after those of the teacher"
    )
    rule = (
        f"Every method has {study.epochs} epochs of its own{before}, which all within a budget learn from and may "
        "start from"
    )
    if study.count_start:
        rule = (
            f"Every method has {study.epochs} epochs in all: one that starts from the teacher has the teacher's "
            "counted, and the others start from scratch. The epochs of networks that only teach are not counted"
        )
    return (
        f"{rule}. Accuracy is that of the last epoch on the test images, in percent; nothing is chosen by it. With "
        "several seeds it is the mean ± the standard deviation; bars of plots reach from the least to the greatest. "
        "Bytes and rounds are those of one image in private "
        f"inference with {study.engine}, predicted. Training is time on the clock: what other runs took "
        f"of the same cores, and pauses, are in it.{_precision(outcomes)}"
    )


def _precision(outcomes: Outcomes) -> str:
    """Which networks were trained in fewer bits than recipes have, and which were not."""
    runs = {job.name: outcome.run for job, outcome in outcomes.items() if outcome.run}
    halves = [name for name, run in runs.items() if run.environment.get("precision") == "bf16-mixed"]
    if not halves:
        return ""
    wide = [name for name in runs if name not in halves]
    fewer, others = (wide, "float32") if len(wide) < len(halves) else (halves, "bfloat16")
    named = f"; in {others} {', '.join(fewer)}" if fewer and wide else ""
    said = f"{len(halves)} of {len(runs)} runs were trained in bfloat16 (`--precision bf16-mixed`){named}"
    return f" {said}. Accuracy is always that in float32."


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> str:
    sides = ["---:" if side == ">" else "---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, sides, *lines))
