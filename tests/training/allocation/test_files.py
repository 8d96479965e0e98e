"""Files of counts."""

import json
from pathlib import Path

import pytest

from deepshare.errors import BudgetError
from deepshare.training.allocation.files import read_counts
from deepshare.training.recipe.allocation import find
from tests.training.allocation.shapes import sites_of


def test_a_file_of_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"a": 3, "b": 0.5}))
    assert find(str(path)).read(sites_of("resnet18", 32)) == {"a": 3.0, "b": 0.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*counts.json: No such file or directory"),
        ("{", r"counts.json is not JSON"),
        ("[1]", "give one number for each site"),
        ('{"a": "1"}', "give one number for each site"),
        ('{"a": true}', "give one number for each site"),
    ],
)
def test_a_file_that_holds_no_counts(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BudgetError, match=message):
        read_counts(path)
