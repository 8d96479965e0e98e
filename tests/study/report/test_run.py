"""Runs read for the report."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepshare import zoo
from deepshare.data import load as load_data
from deepshare.errors import CheckpointError, DataError
from deepshare.private.runtime.engine import engine_names
from deepshare.study import report
from deepshare.study.report import Run
from deepshare.study.report.run import OWN_DATA, OWN_MODEL
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.evaluate import evaluate
from tests.training.small_runs import small_recipe


def test_figures_are_those_of_the_run(shared: Run, tiny_run: Path) -> None:
    result = json.loads((tiny_run / "result.json").read_text())
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    assert (shared.gates, shared.neurons) == (result["gates"], result["neurons"])
    assert shared.score == result["test"]["last"]["accuracy"] == evaluate(load(tiny_run), "digits").accuracy
    assert shared.validation == lines[-1]["val_accuracy"]
    assert [strand.network for strand in shared.strands] == ["teacher", ""]
    assert list(shared.strands[-1].lines) == lines
    assert shared.epochs == 1 + 2 + 2 + 2


def test_the_numbers_survive_json(shared: Run) -> None:
    told = json.loads(json.dumps(shared.to_dict()))
    assert (told["gates"], told["score"], told["tested"]) == (shared.gates, shared.score, True)
    assert told["recipe"]["budget"]["gates"] == "20%"
    assert [len(curve["epochs"]) for curve in told["curves"]] == [1, 6]
    assert sum(group["prototypes"] for group in told["plan"]["groups"]) > 0
    assert set(told["predicted"]["costs"]) == set(engine_names())


def test_data_that_is_missing_is_said_or_refused(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace('name = "digits"\nimage', 'name = "cifar100"\nimage'))
    samples = report.read([run])[0].samples
    assert isinstance(samples, str)
    assert "cifar100" in samples and "--data-dir" in samples
    with pytest.raises(DataError, match="cifar-100-python"):
        report.read([run], tmp_path)


def test_a_model_and_data_of_the_users_own(tmp_path: Path) -> None:
    recipe = small_recipe(gelu__epochs=1, switch__epochs=1, finetune__epochs=1)
    images = load_data("digits").train
    pairs = [(images.images[place] / 255.0, int(images.labels[place])) for place in range(128)]
    model = zoo.build("resnet18", num_classes=10, depth=10, width=8, channels=1)
    fit(model, recipe=recipe, out=tmp_path / "run", data=(pairs_set(pairs), pairs_set(pairs[:64])))
    run = report.read([tmp_path / "run"])[0]
    assert (run.affine, run.predicted, run.samples) == (OWN_MODEL, OWN_MODEL, OWN_MODEL)
    assert run.test is None
    assert run.score == run.validation
    assert report.run.find_images(tmp_path / "run", None) == OWN_DATA
    page = report.page([run])
    assert "of the validation images right" in page
    assert OWN_MODEL in page


def pairs_set(pairs: list[tuple[torch.Tensor, int]]) -> torch.utils.data.Dataset[tuple[torch.Tensor, int]]:
    class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return pairs[index]

    return Pairs()


def test_folders_are_checked_before_anything_is_read(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run to report on"):
        report.check([])
    with pytest.raises(CheckpointError, match="there is no folder"):
        report.check([tiny_run, tmp_path / "nowhere"])
    with pytest.raises(CheckpointError, match="no run folder"):
        report.check([tmp_path])
    with pytest.raises(CheckpointError, match="part of a run"):
        report.check([tiny_run / "teacher"])
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="its weights are not there"):
        report.check([run])


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "environment.json"])
def test_a_damaged_file_is_named(tiny_run: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / name).write_text("{" if name.endswith("json") else "")
    with pytest.raises(CheckpointError, match=f"{name} is missing or damaged"):
        report.read([run])


def test_names_are_short_unless_two_are_alike(shared: Run, plain: Run) -> None:
    one, other = replace(shared, name="runs/a"), replace(plain, name="runs/b")
    assert report.run.short_names([one, other]) == ["a", "b"]
    assert report.run.short_names([one, replace(other, name="more/a")]) == ["runs/a", "more/a"]
