"""The guides for contributors work as they are written."""

import itertools
from pathlib import Path

import pytest

from tests.docs.guides import change, copy_tree, follow, run_tests
from tests.docs.pages import DOCS

GUIDES = sorted((DOCS / "guides").glob("add-*.md"))


def test_the_guides_can_be_followed(tmp_path: Path) -> None:
    """One after the other in one copy, as the tests of all of them take hardly longer than those of one."""
    assert len(GUIDES) == 4
    copy_tree(tmp_path)
    tests = [follow(guide, tmp_path) for guide in GUIDES]
    assert all(tests)
    paths = list(itertools.chain(*tests))
    said = run_tests(tmp_path, paths)
    assert [path for path in paths if f"{path} ." not in said] == []


def test_a_change_that_no_longer_fits_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\n")
    change(file, " one\n-two\n+three\n")
    assert file.read_text() == "one\nthree\n"
    with pytest.raises(AssertionError, match="not once"):
        change(file, "-two\n+three\n")
