import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepshare import Plan, plan, share, zoo
from deepshare.sharing.onnx import count_comparisons
from tests.cli.conftest import Cli


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan(zoo.build("resnet10"), (3, 32, 32), 4000).save(path)
    return path


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
    import onnxruntime

    plain = zoo.build("resnet10", classes=10).eval()
    shared = share(plain, Plan.load(plan_file), start="identity" if kind == "plain" else "uniform")
    save_file((plain if kind == "plain" else shared).state_dict(), tmp_path / "w.safetensors")
    out = tmp_path / "r10.onnx"
    options = ["--plan", plan_file, "--out", out, "--weights", tmp_path / "w.safetensors", "--classes", 10]
    said = cli("export", "resnet10", *options)
    assert said.out.count(f"{Plan.load(plan_file).gates:,}") == 2, said
    images = torch.randn(4, 3, 32, 32)
    session = onnxruntime.InferenceSession(out)
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), shared(images), rtol=1e-3, atol=1e-4)


def test_weights_of_another_network_are_refused(cli: Cli, tmp_path: Path, plan_file: Path) -> None:
    save_file(zoo.build("resnet10", classes=10).state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:1000])
    save_file({"fc.weight": torch.zeros(100, 512)}, tmp_path / "lone.safetensors")
    save_file({"stray": torch.zeros(1)}, tmp_path / "stray.safetensors")
    for name, words in [
        ("w", "fc.bias is [10] in the file and [100] in the network"),
        ("half", "cannot read"),
        ("missing", "cannot read"),
        ("lone", "more"),
        ("stray", "no bn1.bias in the file"),
    ]:
        weights = tmp_path / f"{name}.safetensors"
        said = cli("export", "resnet10", "--plan", plan_file, "--out", tmp_path / "x.onnx", "--weights", weights)
        assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
        assert words in said.err
        assert not (tmp_path / "x.onnx").exists()


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
