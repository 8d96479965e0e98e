"""Order of runs, and selection of methods by results."""

from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.schedule import jobs, select, undecided
from deepshare.study.compare.study_file import TEACHER, Job, Selection, Study
from tests.study.compare.made_outcomes import finished, refused


def outcomes(study: Study, scores: dict[str, float], budget: int = 192) -> dict[Job, RunOutcome]:
    found = {Job(method, "few", budget): score for method, score in scores.items()}
    return {job: finished(study, job, score) for job, score in found.items()}


def test_the_teacher_comes_first_and_choices_come_when_they_can_be_made(digits: Study) -> None:
    every = jobs(digits, {})
    assert every[0] == Job(TEACHER, "few")
    assert [job.name for job in every[1:4]] == ["few-relu-seed0", "few-deepshare-96-seed0", "few-snl-96-seed0"]
    assert [part.about for part in undecided(digits, {})] == ["another seed for the two closest"]
    decided = outcomes(digits, {"deepshare": 60.0, "snl": 50.0})
    assert undecided(digits, decided) == []
    assert jobs(digits, decided)[len(every) :] == [Job("deepshare", "few", 192, 1), Job("snl", "few", 192, 1)]


def test_a_method_without_a_result_is_not_chosen(digits: Study) -> None:
    job = Job("snl", "few", 192)
    known = {**outcomes(digits, {"deepshare": 60.0}), job: refused(digits, job, "it cannot")}
    assert undecided(digits, known) == []
    assert len(jobs(digits, known)) == len(jobs(digits, {}))


def test_leaders_and_neighbours() -> None:
    ranked = {"a": 60.0, "b": 59.0, "c": 50.0, "d": 49.5}
    assert select(Selection(by="leaders", count=2, data="few"), ranked) == {"a", "b"}
    assert select(Selection(by="closest", count=1, data="few"), ranked) == {"c", "d"}
    assert select(Selection(by="closest", count=2, data="few"), ranked) == {"a", "b", "c", "d"}
