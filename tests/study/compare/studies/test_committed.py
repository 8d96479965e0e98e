"""Committed studies: what was measured is read as ever, and makes the page that stands beside it."""

from pathlib import Path

import pytest

from deepshare.study.compare.outcome import read_all
from deepshare.study.compare.page import as_markdown
from deepshare.study.compare.study_file import load_study

RESULTS = Path(__file__).parents[4] / "results" / "compare"


@pytest.mark.parametrize("name", sorted(folder.name for folder in RESULTS.iterdir()))
def test_the_page_follows_from_the_outcomes(name: str) -> None:
    folder, study = RESULTS / name, load_study(name)
    outcomes = read_all(study, folder)
    assert {job.name for job in outcomes} == {file.stem for file in folder.glob("*.json")}
    page = as_markdown(study, outcomes, [figure.stem for figure in folder.glob("*.svg")], RESULTS)
    assert page == (folder / "README.md").read_text(encoding="utf-8"), f"deepshare compare --study {name} --show"
