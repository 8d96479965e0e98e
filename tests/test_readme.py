"""The Python blocks of the README run, in order, as one program."""

from pathlib import Path

import pytest

from tests.docs.pages import run_python

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.usefixtures("parties_are_threads")
def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(README), "the README has no Python block"
