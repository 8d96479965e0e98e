"""The list of recipes and of their finished runs."""

import json
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError, RecipeError
from deepshare.training.catalog import NOT_RUN, BestEpoch, Finished, as_table, list_recipes, record
from deepshare.training.recipe.files import load_recipe, names, to_toml


def run_folder(path: Path) -> Path:
    """Write what a finished run of digits at 10% leaves, apart from its weights."""
    recipe = load_recipe("digits", {"budget.gates": "10%", "gelu.epochs": 1, "seed": 3})
    (path / "recipe.toml").write_text(to_toml(recipe))
    site = {"name": "act", "channels": 16, "height": 8, "width": 8}
    (path / "plan.json").write_text(json.dumps({"groups": [{"sites": [site, site]}]}))
    (path / "environment.json").write_text(
        json.dumps({"command": ["/usr/bin/deepshare", "train", "-r", "a b"], "seed": 3, "cpu": "Z80", "gpu": None})
    )
    lines = [("gelu", 1, 0.5), ("switch", 1, 0.6), ("switch", 2, 0.7), ("finetune", 1, 0.91239)]
    (path / "metrics.jsonl").write_text(
        "".join(json.dumps({"phase": p, "epoch": e, "val_accuracy": v}) + "\n" for p, e, v in lines)
    )
    figures = {"last": {"accuracy": 0.90004, "loss": 0.3}, "best": {"accuracy": 0.95, "loss": 0.2}}
    (path / "result.json").write_text(json.dumps({"gates": 384, "test": figures, "seconds": 12.5}))
    return path


def test_a_run_is_recorded_off_its_folder(tmp_path: Path) -> None:
    run = record(run_folder(tmp_path))
    assert run.recipe == "digits"
    assert run.overrides == {"seed": 3, "budget.gates": "10%", "gelu.epochs": 1}
    assert (run.test, run.validation, run.score) == (90.0, 91.24, "accuracy")
    assert (run.gates, run.neurons, run.seconds) == (384, 2048, 12.5)
    assert run.epochs == {"gelu": 1, "switch": 2, "finetune": 1}
    assert run.command == "deepshare train -r 'a b'"
    assert "command" not in run.environment


def test_the_best_epoch_has_no_more_gates_than_the_last(tmp_path: Path) -> None:
    assert record(run_folder(tmp_path)).best == BestEpoch(epoch=1, validation=91.24, test=95.0)
    lines = [
        (0.9, {"own_relu": 0.25}),
        (0.9, {"hard_share": 0.5}),
        (0.6, {"hard_share": 1.0}),
        (0.5, {"own_relu": 0.0}),
    ]
    phase = [{"phase": "finetune", "epoch": e, "val_accuracy": v, **m} for e, (v, m) in enumerate(lines, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in phase))
    # The epoch of the kept weights, without which they are taken for those of the highest score, one of the fade.
    assert record(tmp_path).best == BestEpoch(epoch=3, validation=60.0, test=None)
    result = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(result | {"best_epoch": 3}))
    assert record(tmp_path).best == BestEpoch(epoch=3, validation=60.0, test=95.0)


def test_a_plain_network_keeps_all_its_gates(tmp_path: Path) -> None:
    (run_folder(tmp_path) / "plan.json").unlink()
    assert record(tmp_path).neurons == 384


def test_an_unfinished_run_is_not_recorded(tmp_path: Path) -> None:
    (run_folder(tmp_path) / "result.json").unlink()
    with pytest.raises(CheckpointError, match=r"no finished run \(no result.json\)"):
        record(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "environment.json"])
def test_a_damaged_run_is_not_recorded(tmp_path: Path, name: str) -> None:
    file = run_folder(tmp_path) / name
    file.write_text(file.read_text()[:-20])
    with pytest.raises(CheckpointError, match=f"{name} is missing or damaged"):
        record(tmp_path)


def test_the_list_tells_what_was_run_and_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = record(run_folder(tmp_path / "run"))
    (tmp_path / "digits-10.json").write_text(run.model_dump_json())
    rows = {row.recipe.name: row for row in list_recipes(tmp_path)}
    assert list(rows) == names()
    assert rows["digits"].runs == (run,)
    assert rows["digits"].status == (
        f"accuracy 90.00% with 384 of 2,048 gates, seed 3, budget.gates 10%, gelu.epochs 1 (Z80, {run.date})"
    )
    assert {row.status for name, row in rows.items() if name != "digits"} == {NOT_RUN}
    assert rows["cifar100-resnet18-6k"].paper == "76.13% (table 1)"
    assert rows["ade20k-deeplabv3"].paper == "34.08% (table 4)"
    assert rows["digits"].paper == ""
    shown = as_table(list(rows.values())).splitlines()
    assert len(shown) == 2 + len(rows)
    assert sum(NOT_RUN in line for line in shown) == len(rows) - 1


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"recipe": "digits"}')
    with pytest.raises(RecipeError, match=r"broken\.json cannot be read: overrides: Field required"):
        list_recipes(tmp_path)


def test_packaged_records_belong_to_packaged_recipes() -> None:
    known = set(names())
    folder = Path(__file__).parents[2] / "src" / "deepshare" / "training" / "results"
    for file in folder.glob("*.json"):
        assert Finished.model_validate_json(file.read_text()).recipe in known
