"""Answers of a study: differences of methods that it asks for, accuracy after each phase, and what is open."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.runner import jobs, undecided
from deepshare.study.compare.study_file import TEACHER, TEACHERS, Job, Question, Study
from deepshare.study.compare.tables import MethodRow, Table, rows
from deepshare.training.recipe.schema import PHASES

QUESTION_HEADER = ("", "gates", "difference", "seeds", "in the paper")
OPEN = "open"


def questions(study: Study, outcomes: Outcomes) -> Table | None:
    """Differences of accuracy that the study is for, on its first images; None if it asks nothing."""
    if not study.questions:
        return None
    found = {(row.method, row.budget): row for row in rows(study, outcomes, next(iter(study.data))) if row.runs}
    lines = [_answer(study, question, found) for question in study.questions]
    return Table("Questions and answers so far", QUESTION_HEADER, lines, "<>>>>")


def _answer(study: Study, question: Question, found: dict[tuple[str, int | None], MethodRow]) -> tuple[str, ...]:
    names = (
        (question.first, question.at),
        (question.second, question.at if question.second_at is None else question.second_at),
    )
    first, second = (found.get((name, at if study.has_budget(name) else None)) for name, at in names)
    first, second = (row and row.steady for row in (first, second))
    said = "" if question.paper is None else f"{question.paper:+.2f}"
    if not first or not second or not first.runs or not second.runs:
        return question.about, f"{question.at:,}", OPEN, "", said
    difference = f"{first.test.mean - second.test.mean:+.2f}"
    seeds = [len(first.runs), len(second.runs)]
    if first.test.spread is not None and second.test.spread is not None:
        # The standard error of a difference of two means.
        error = sqrt(first.test.spread**2 / seeds[0] + second.test.spread**2 / seeds[1])
        difference += f" ± {error:.2f}"
    return question.about, f"{question.at:,}", difference, " and ".join(map(str, seeds)), said


def phases(study: Study, outcomes: Outcomes, data: str) -> Table | None:
    """Validation accuracy at the start and after each phase, at the main budget; None without curves."""
    found = [row for row in rows(study, outcomes, data) if row.runs]
    at = main_budget(found)
    shown = [row for row in found if row.budget == at and row.method not in TEACHERS and row.outcomes[0].curve]
    names = [name for name in PHASES if any(name in (row.outcomes[0].curve or {}) for row in shown)]
    if not shown:
        return None
    teacher = outcomes.get(Job(TEACHER, data))
    lines: list[tuple[str, ...]] = []
    for row in shown:
        curve = row.outcomes[0].curve or {}
        start = f"{teacher.run.validation:.2f}" if row.before and teacher and teacher.run else ""
        ends = [f"{curve[name][-1]:.2f} ({len(curve[name])})" if name in curve else "" for name in names]
        lines.append((row.title, start, *ends))
    header = ("seed 0", "before", *(f"after {name} (epochs)" for name in names))
    return Table(f"Validation accuracy by phase at {at:,} gates", header, lines, "<" + ">" * (len(header) - 1))


def main_budget(found: Sequence[MethodRow]) -> int:
    """The budget that has most runs; the smallest of several, and 0 without any."""
    counts = Counter(row.budget for row in found if row.budget for _ in row.runs)
    return min((budget for budget, count in counts.items() if count == max(counts.values())), default=0)


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
