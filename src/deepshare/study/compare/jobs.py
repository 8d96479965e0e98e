"""What a study still has to run, and in which order."""

from itertools import pairwise

from deepshare.study.compare.definition import Choice, Job, Pass, Study
from deepshare.study.compare.outcome import Outcomes


def jobs(study: Study, outcomes: Outcomes) -> list[Job]:
    """Every run of a study in its order, teachers before those who learn from them.

    Methods that are chosen by results are there as soon as these are.
    """
    found: dict[Job, None] = {}
    for part in study.passes:
        for job in (job for job in study.jobs_of(part) if _is_chosen(study, part, job, outcomes)):
            found |= dict.fromkeys([*study.teachers_of(job), job])
    return list(found)


def kinds(study: Study) -> list[Job]:
    """One run of every method at every budget that a pass may have."""
    found: dict[tuple[str, int | None], Job] = {}
    for job in (job for part in study.passes for job in study.jobs_of(part)):
        found.setdefault((job.method, job.budget), job)
    return list(found.values())


def undecided(study: Study, outcomes: Outcomes) -> list[Pass]:
    """The passes whose methods cannot be chosen yet."""
    return [
        part
        for part in study.passes
        if part.choose and any(_ranked(study, part, b, part.choose.data, outcomes) is None for b in part.budgets)
    ]


def _is_chosen(study: Study, part: Pass, job: Job, outcomes: Outcomes) -> bool:
    if part.choose is None:
        return True
    ranked = _ranked(study, part, job.budget, part.choose.data, outcomes)
    return ranked is not None and job.method in choose(part.choose, ranked)


def _ranked(study: Study, part: Pass, budget: int | None, data: str, outcomes: Outcomes) -> dict[str, float] | None:
    """The validation accuracy of the methods of a pass, the best first; None as long as one is missing."""
    scores = {}
    for method in part.methods:
        outcome = outcomes.get(Job(method, data, budget if study.has_budget(method) else None))
        if outcome is None:
            return None
        if outcome.run:
            scores[method] = outcome.run.validation
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def choose(choice: Choice, ranked: dict[str, float]) -> set[str]:
    """Choose among methods in the order of their rank.

    >>> scores = {"a": 60.0, "b": 55.0, "c": 54.5, "d": 50.0}
    >>> sorted(choose(Choice(by="closest", count=1, data="few"), scores))
    ['b', 'c']
    """
    if choice.by == "leaders":
        return set(list(ranked)[: choice.count])
    pairs = sorted(pairwise(ranked), key=lambda pair: ranked[pair[0]] - ranked[pair[1]])
    return {method for pair in pairs[: choice.count] for method in pair}
