"""Run folders: their files, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from deepshare.errors import CheckpointError
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder
from tests.training.small_runs import Finished, Small


@pytest.fixture
def folder(finished: Finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def test_the_files_of_a_finished_run(finished: Finished) -> None:
    assert sorted(file.name for file in finished[0].iterdir()) == [
        "best.safetensors",
        "environment.json",
        "images.json",
        "metrics.jsonl",
        "model.safetensors",
        "plan.json",
        "recipe.toml",
        "result.json",
        "teacher",
    ]


def test_the_record_has_a_line_for_each_epoch(finished: Finished) -> None:
    lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["epoch"], line["hard_share"]) for line in lines] == [
        ("gelu", 1, 0.0),
        ("gelu", 2, 0.0),
        ("switch", 1, 0.5),
        ("switch", 2, 1.0),
        ("finetune", 1, 1.0),
        ("finetune", 2, 1.0),
    ]
    assert {"loss", "accuracy", "val_accuracy", "val_loss", "lr", "seconds"} < lines[0].keys()


def test_the_environment_is_recorded(finished: Finished) -> None:
    environment = json.loads((finished[0] / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["seed"] == 0
    assert {"command", "cpu", "threads", "python", "precision"} < environment.keys()


def test_a_finished_run_that_has_lost_its_record_cannot_be_summed_up(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is missing or damaged"):
        fit(recipe=load_recipe(folder / "recipe.toml"), out=folder, resume=True)


@pytest.mark.parametrize("content", ["", '{"gates": 3', "[]", "{}"])
def test_a_damaged_result_is_written_again_once_it_is_deleted(folder: Path, content: str) -> None:
    run = RunFolder(folder)
    before = run.read_result()
    run.result.write_text(content)
    with pytest.raises(CheckpointError, match=r"result\.json is missing or damaged: delete it"):
        run.read_result()
    run.result.unlink()
    fit(recipe=load_recipe(run.recipe), out=folder, resume=True)
    assert run.read_result() == before


def test_a_folder_in_use_is_refused(finished: Finished, small: Small, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a finished run: give another folder"):
        fit(recipe=small(), out=finished[0])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is no run folder"):
        fit(recipe=small(), out=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="is a file"):
        fit(recipe=small(), out=tmp_path / "notes.txt")


def test_resume_with_a_changed_recipe_names_the_keys(finished: Finished, small: Small) -> None:
    with pytest.raises(CheckpointError, match=r"gelu\.lr was 0\.05 and is 0\.01; finetune\.epochs was 2 and is 7"):
        fit(recipe=small(gelu__lr=0.01, finetune__epochs=7), out=finished[0], resume=True)
