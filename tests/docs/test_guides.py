"""The guides for contributors work as they are written."""

from pathlib import Path

import pytest

from tests.docs.guides import change, follow, run_tests
from tests.docs.pages import DOCS


@pytest.mark.parametrize("guide", ["add-a-data-set", "add-a-method", "add-an-engine", "add-an-operation"])
def test_a_guide_can_be_followed(guide: str, tmp_path: Path) -> None:
    tests = follow(DOCS / "guides" / f"{guide}.md", tmp_path)
    assert tests
    assert " passed" in run_tests(tmp_path, tests)


def test_a_change_that_no_longer_fits_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\n")
    change(file, " one\n-two\n+three\n")
    assert file.read_text() == "one\nthree\n"
    with pytest.raises(AssertionError, match="not once"):
        change(file, "-two\n+three\n")
