"""What the README shows: Python blocks run, in order, as one program, and figures of the study are its own."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks, "the README has no Python block"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        # Empty lines before the block, so that a traceback points into the README.
        padding = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(padding + block[1], str(README), "exec"), namespace)


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
