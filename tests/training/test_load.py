"""Run folders: what is in them, and reading a network back from one alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from deepshare.errors import CheckpointError, PlanError
from deepshare.sharing.convert import count_gates
from deepshare.sharing.plan import Plan
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.evaluate import evaluate
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder

Finished = tuple[Path, nn.Module]


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


def test_the_network_is_rebuilt_from_the_folder_alone(finished: Finished) -> None:
    folder, trained = finished
    loaded = load(folder)
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(loaded(images), trained(images))
    assert not loaded.training
    assert count_gates(loaded, (1, 8, 8)) == Plan.load(folder / "plan.json").gates


def test_the_result_is_that_of_the_test_images(finished: Finished) -> None:
    result = json.loads((finished[0] / "result.json").read_text())
    for name, best in (("last", False), ("best", True)):
        assert result["test"][name]["accuracy"] == evaluate(load(finished[0], best=best), "digits").accuracy
    assert result["gates"] == Plan.load(finished[0] / "plan.json").gates


def test_the_teacher_is_a_run_of_its_own(finished: Finished) -> None:
    teacher = load(finished[0] / "teacher")
    assert sum(isinstance(module, nn.GELU) for module in teacher.modules()) == 8
    assert load_recipe(finished[0] / "teacher" / "recipe.toml") == load_recipe(finished[0] / "recipe.toml")


def test_folders_that_are_no_finished_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(CheckpointError, match="is no run folder"):
        load(tmp_path / "foreign")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="its weights are not there: put model"):
        load(folder)
    (folder / "result.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        load(folder)


def test_best_weights_that_are_not_there(folder: Path) -> None:
    (folder / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"best\.safetensors is not there: take the last weights"):
        load(folder, best=True)
    load(folder)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load(folder)


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


def test_a_plan_that_is_missing_or_damaged(folder: Path) -> None:
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text[:-50])
    with pytest.raises(PlanError, match=r"plan\.json"):
        load(folder)


def test_another_plan_is_refused(folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_text())
    content["mapping"] = "contiguous"
    (folder / "plan.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="another plan"):
        load(folder)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    shutil.copy(folder / "teacher" / "model.safetensors", folder / "model.safetensors")
    recipe = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(recipe.replace("width = 8", "width = 4"))
    with pytest.raises(CheckpointError, match="another network"):
        load(folder)
