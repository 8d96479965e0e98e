"""Schedule of a study: its runs in order, and the methods that passes select by earlier results."""

from itertools import pairwise

from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.study_file import Job, Pass, Selection, Study


def jobs(study: Study, outcomes: Outcomes) -> list[Job]:
    """All runs of a study in order, teachers before the runs that depend on them.

    Runs of methods that are selected by results are included as soon as these results exist.
    """
    found: dict[Job, None] = {}
    for part in study.passes:
        for job in (job for job in study.jobs_of(part) if _is_selected(study, part, job, outcomes)):
            found |= dict.fromkeys([*study.teachers_of(job), job])
    return list(found)


def kinds(study: Study) -> list[Job]:
    """One run of every method at every budget that a pass may have."""
    found: dict[tuple[str, int | None], Job] = {}
    for job in (job for part in study.passes for job in study.jobs_of(part)):
        found.setdefault((job.method, job.budget), job)
    return list(found.values())


def undecided(study: Study, outcomes: Outcomes) -> list[Pass]:
    """Passes whose methods cannot be selected yet."""
    return [
        part
        for part in study.passes
        if part.choose and any(_ranked(study, part, b, part.choose.data, outcomes) is None for b in part.budgets)
    ]


def _is_selected(study: Study, part: Pass, job: Job, outcomes: Outcomes) -> bool:
    if part.choose is None:
        return True
    ranked = _ranked(study, part, job.budget, part.choose.data, outcomes)
    return ranked is not None and job.method in select(part.choose, ranked)


def _ranked(study: Study, part: Pass, budget: int | None, data: str, outcomes: Outcomes) -> dict[str, float] | None:
    """Validation accuracy of the methods of a pass, best first; None until all have a result."""
    scores = {}
    for method in part.methods:
        outcome = outcomes.get(Job(method, data, budget if study.has_budget(method) else None))
        if outcome is None:
            return None
        if outcome.run:
            scores[method] = outcome.run.validation
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def select(selection: Selection, ranked: dict[str, float]) -> set[str]:
    """Select among methods in the order of their rank.

    >>> scores = {"a": 60.0, "b": 55.0, "c": 54.5, "d": 50.0}
    >>> sorted(select(Selection(by="closest", count=1, data="few"), scores))
    ['b', 'c']
    """
    if selection.by == "leaders":
        return set(list(ranked)[: selection.count])
    pairs = sorted(pairwise(ranked), key=lambda pair: ranked[pair[0]] - ranked[pair[1]])
    return {method for pair in pairs[: selection.count] for method in pair}
