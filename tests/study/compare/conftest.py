"""Studies, outcomes as runs would leave them, and the study digits run to its end."""

from pathlib import Path

import pytest

from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.runner import Runner
from deepshare.study.compare.study_file import TEACHER, Job, Study, load_study
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from tests.study.compare.digits import TEACHER_KEYS, run, runner_in
from tests.study.compare.made_outcomes import finished, refused


@pytest.fixture(scope="session")
def small() -> Study:
    return load_study("small")


@pytest.fixture(scope="session")
def digits() -> Study:
    return load_study("digits")


@pytest.fixture(scope="session")
def known(small: Study) -> dict[Job, RunOutcome]:
    """A teacher, DeepShare with three seeds, SNL cut by rank, DELPHI refused, and two ablations."""
    trimmed = Job("delphi", "subset", 1536)
    made = [
        finished(small, Job(TEACHER, "subset"), 60.0),
        *(finished(small, Job("deepshare", "subset", 1536, seed), 50.0 + seed) for seed in range(3)),
        finished(small, Job("snl", "subset", 1536), 40.0, searched=9999, private=None),
        refused(small, trimmed, "delphi keeps whole layers"),
        finished(small, Job("deepshare", "subset", 6144), 55.0),
        finished(small, Job("no-affine", "subset", 6144), 53.5),
        finished(small, Job("deepshare", "full", 1536), 70.0),
        finished(small, Job(TEACHER, "full"), 75.0),
    ]
    return {outcome.job: outcome for outcome in made}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The study run to its end; not to be changed."""
    runner = runner_in(tmp_path_factory.mktemp("whole"))
    run(runner)
    return runner


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain network that was trained on more images."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    fit(recipe=load_recipe("digits-plain", TEACHER_KEYS), out=folder)
    return folder
