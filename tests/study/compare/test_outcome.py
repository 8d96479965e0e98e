"""Results as files: what is read back, and what does not belong together."""

import json
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError
from deepshare.study.compare.outcome import RunOutcome, read_all, write
from deepshare.study.compare.study_file import TEACHER, Job, Study
from tests.study.compare.made_outcomes import finished, refused

SNL = Job("snl", "few", 96)


def test_what_is_written_is_read_back(digits: Study, tmp_path: Path) -> None:
    teacher, trimmed = Job(TEACHER, "few"), Job("trimmed", "few", 96)
    known = {
        SNL: finished(digits, SNL, 50.0, searched=1234),
        teacher: finished(digits, teacher, 60.0),
        trimmed: refused(digits, trimmed, "below the minimum"),
    }
    for outcome in known.values():
        write(outcome, tmp_path)
    assert read_all(digits, tmp_path) == known
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"{name}.json" for name in sorted(j.name for j in known)
    ]
    assert read_all(digits, tmp_path / "nothing yet") == {}


def refusal(digits: Study, folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_all(digits, folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("damage", ["", '{"study": "dig', '{"study": "digits"}', "[]"])
def test_a_damaged_file_is_named(digits: Study, tmp_path: Path, damage: str) -> None:
    write(finished(digits, SNL, 50.0), tmp_path)
    (tmp_path / "few-snl-96-seed0.json").write_text(damage)
    assert refusal(digits, tmp_path).startswith(f"{tmp_path}/few-snl-96-seed0.json is damaged (")


def altered(digits: Study, folder: Path, **changes: object) -> str:
    outcome = finished(digits, SNL, 50.0)
    write(RunOutcome.model_validate({**outcome.model_dump(), **changes}), folder)
    return refusal(digits, folder)


def test_results_of_something_else_are_refused(digits: Study, tmp_path: Path) -> None:
    assert "is a result of the study small, not of digits" in altered(
        digits, tmp_path / make(tmp_path, "a"), study="small"
    )
    assert "which the study no longer has" in altered(digits, tmp_path / make(tmp_path, "b"), method="old")
    assert "digits-plain has changed" in altered(digits, tmp_path / make(tmp_path, "c"), definition="0123456789abcdef")
    said = altered(digits, tmp_path / make(tmp_path, "d"), teacher="0123456789abcdef")
    assert "learned from another teacher" in said and "--out" in said


def make(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


def test_another_definition_is_refused_with_what_has_changed(digits: Study, tmp_path: Path) -> None:
    write(finished(digits, SNL, 50.0), tmp_path)
    entry = digits.methods["snl"]
    recipe = {**entry.recipe, "search": {**entry.recipe["search"], "lr": 0.002}}
    methods = {**digits.methods, "snl": entry.model_copy(update={"recipe": recipe})}
    said = refusal(digits.model_copy(update={"methods": methods}), tmp_path)
    assert "another definition of the study (search.lr was 0.001 and is 0.002): give another --out" in said


def test_a_renamed_file_is_refused(digits: Study, tmp_path: Path) -> None:
    write(finished(digits, SNL, 50.0), tmp_path)
    (tmp_path / "few-snl-96-seed0.json").rename(tmp_path / "few-snl-192-seed0.json")
    assert "holds the result of few-snl-96-seed0" in refusal(digits, tmp_path)


def test_files_hold_no_paths_and_say_how_they_were_made(digits: Study, tmp_path: Path) -> None:
    write(finished(digits, SNL, 50.0), tmp_path)
    content = json.loads((tmp_path / "few-snl-96-seed0.json").read_text())
    assert "refused" not in content
    assert content["run"]["overrides"]["search.epochs"] == 2
