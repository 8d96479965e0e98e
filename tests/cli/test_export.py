import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepshare import Plan, fit, load, plan, share, zoo
from deepshare.sharing.onnx import count_comparisons
from deepshare.training.recipe.files import load_recipe
from tests.cli.command import Cli
from tests.sharing.exported import onnx_logits


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan(zoo.build("resnet10"), (3, 32, 32), 4000).save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    short = {f"{phase}.epochs": 1 for phase in ("teacher", "plain", "gelu", "switch", "finetune")}
    fit(recipe=load_recipe("digits", short | {"model.arguments.width": 8, "budget.gates": "30%"}), out=folder)
    return folder


def test_the_file_compares_as_often_as_planned(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    out = tmp_path / "r10.onnx"
    said = cli("export", "resnet10", "--plan", plan_file, "--out", out, "--json")
    gates = Plan.load(plan_file).gates
    assert json.loads(said.out) == {"model": "resnet10", "file": str(out), "gates": gates, "comparisons": gates}
    assert count_comparisons(out) == gates
    assert [path.name for path in tmp_path.iterdir()] == ["r10.onnx"]


@pytest.mark.parametrize("kind", ["plain", "shared"])
def test_weights_of_the_plain_and_of_the_shared_network_are_taken(
    cli: Cli, tmp_path: Path, plan_file: Path, kind: str
) -> None:
    plain = zoo.build("resnet10", num_classes=10).eval()
    shared = share(plain, Plan.load(plan_file), start="identity" if kind == "plain" else "uniform")
    save_file((plain if kind == "plain" else shared).state_dict(), tmp_path / "w.safetensors")
    out = tmp_path / "r10.onnx"
    options = ["--plan", plan_file, "--out", out, "--weights", tmp_path / "w.safetensors", "--classes", 10]
    said = cli("export", "resnet10", *options)
    assert said.out.count(f"{Plan.load(plan_file).gates:,}") == 2, said
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(onnx_logits(out, images), shared(images), rtol=1e-3, atol=1e-4)


def test_weights_of_another_network_are_refused(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    save_file(zoo.build("resnet10", num_classes=10).state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:1000])
    save_file({"fc.weight": torch.zeros(100, 512)}, tmp_path / "lone.safetensors")
    save_file(zoo.build("resnet10").state_dict() | {"stray": torch.zeros(1)}, tmp_path / "stray.safetensors")
    for name, words in [
        ("w", "fc.bias has shape (10,), not (100,)"),
        ("half", "cannot read"),
        ("missing", "cannot read"),
        ("lone", "is missing"),
        ("stray", "stray is unknown"),
    ]:
        weights = tmp_path / f"{name}.safetensors"
        said = cli("export", "resnet10", "--plan", plan_file, "--out", tmp_path / "x.onnx", "--weights", weights)
        assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
        assert words in said.err
        assert not (tmp_path / "x.onnx").exists()


def test_a_run_is_exported_with_its_own_plan_and_weights(cli: Cli, tmp_path: Path, run: Path) -> None:
    out = tmp_path / "run.onnx"
    said = json.loads(cli("export", run, "--out", out, "--json").out)
    assert said["comparisons"] == said["gates"] == Plan.load(run / "plan.json").gates
    images = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(onnx_logits(out, images), load(run)(images), rtol=1e-3, atol=1e-4)


def test_a_run_takes_no_other_plan(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    said = cli("export", tmp_path, "--plan", plan_file, "--out", tmp_path / "x.onnx")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "its own plan" in said.err


def test_a_folder_that_is_no_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    said = cli("export", tmp_path, "--out", tmp_path / "x.onnx")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert str(tmp_path) in said.err
    said = cli("export", tmp_path / "none", "--out", tmp_path / "x.onnx")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert f"there is no folder {tmp_path / 'none'}" in said.err
    assert not list(tmp_path.iterdir())


def damaged(text: str) -> list[tuple[str, str]]:
    content = json.loads(text)
    edited = json.loads(text)
    edited["groups"][0]["prototypes"] = 10_000
    return [
        (text[: len(text) // 2], "truncated"),
        ("", "truncated"),
        ("{}", "not a plan"),
        (json.dumps(content | {"version": 99}), "version 99"),
        (json.dumps(edited), "10000"),
    ]


def test_a_damaged_plan_is_refused(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    for text, words in damaged(plan_file.read_text()):
        (tmp_path / "plan.json").write_text(text)
        said = cli("export", "resnet10", "--plan", tmp_path / "plan.json", "--out", tmp_path / "x.onnx")
        assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
        assert words in said.err
        assert str(tmp_path / "plan.json") in said.err
        assert not (tmp_path / "x.onnx").exists()


def test_a_plan_for_another_network_is_refused(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    said = cli("export", "resnet18", "--plan", plan_file, "--out", tmp_path / "x.onnx")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "layer1.1.act1" in said.err
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_found_out_before_any_work(
    cli: Cli, tmp_path: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepshare.zoo.build", pytest.fail)
    said = cli("export", "resnet10", "--plan", plan_file, "--out", tmp_path / "no" / "x.onnx")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert str(tmp_path / "no" / "x.onnx") in said.err
