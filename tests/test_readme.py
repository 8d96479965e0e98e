"""The Python blocks of the README run, in order, as one program; its figures of the study are the study's own."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import run_python

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(README), "the README has no Python block"


def test_what_is_told_of_the_study_is_in_its_results() -> None:
    page = (README.parent / "results/compare/small/README.md").read_text(encoding="utf-8")
    said = re.search(r"^\*\*Methods side by side\.\*\*.*?^\| ", README.read_text(), re.MULTILINE | re.DOTALL)
    found = re.search(
        r"^## Found$.*?^## ", (README.parent / "docs/comparators.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert said and found
    figures = re.findall(r"\b\d\d\.\d\d\b", said[0] + found[0])
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in page] == []
