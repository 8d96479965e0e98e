import json
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.study.tiny_runs import train_tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory)


def test_xor_draws_and_tells(cli: Cli, tmp_path: Path) -> None:
    said = cli("study", "xor", "--seeds", 2, "--epochs", 10, "--out", tmp_path / "new" / "xor")
    assert said.code == 0
    assert "DeepShare with the GELU phase" in said.out
    assert "of 2" in said.out
    assert said.err.splitlines()[-1] == "epoch 10 of 10"
    assert {path.name for path in (tmp_path / "new" / "xor").iterdir()} == {"xor.json", "xor.svg", "xor.png"}


def test_xor_as_json_is_the_file(cli: Cli, tmp_path: Path) -> None:
    said = cli("study", "xor", "--seeds", 2, "--epochs", 3, "--out", tmp_path, "--json")
    record = json.loads(said.out)
    assert record == json.loads((tmp_path / "xor.json").read_text())
    assert record["settings"]["epochs"] == 3
    assert record["command"].startswith("deepshare study xor --seeds 2 --epochs 3")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--seeds", 0], ["seeds 0"]), (["--out", "{file}/x"], ["{file}/x"]), (["--out", "{file}"], [])],
)
def test_bad_input_is_one_line(cli: Cli, tmp_path: Path, options: list[object], words: list[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    said = cli("study", "xor", "--epochs", 1, *(str(option).format(file=file) for option in options))
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert all(word.format(file=file) in said.err for word in words)


def test_the_help_says_what_all_studies_do(cli: Cli) -> None:
    said = cli("study", "--help").out
    assert "--json" in said
    assert all(name in said for name in ("xor", "boundaries", "published", "dimension", "affine"))
    assert "RUN [OTHER]" in cli("study", "affine", "--help").out


@pytest.mark.parametrize(("name", "words"), [("boundaries", "two-piece line"), ("published", "Wide-ResNet 22-8")])
def test_what_needs_no_run_is_drawn(name: str, words: str, cli: Cli, tmp_path: Path) -> None:
    said = cli("study", name, "--out", tmp_path)
    assert words in said.out
    assert said.out.splitlines()[-1] == f"drawn in {tmp_path}/{name}.svg"
    as_json = cli("study", name, "--out", tmp_path, "--json")
    assert json.loads(as_json.out) == json.loads((tmp_path / f"{name}.json").read_text())


def test_dimension_of_a_run_is_written_into_its_folder(cli: Cli, run: Path) -> None:
    said = cli("study", "dimension", run, "--samples", 100)
    assert said.code == 0
    assert "100 images" in said.out
    assert said.err.splitlines()[-1] == "image 100 of 100"
    record = json.loads((run / "study" / "dimension.json").read_text())
    assert record["command"] == f"deepshare study dimension {run} --samples 100"
    assert record["images"] == 100
    assert (run / "study" / "dimension.svg").is_file()


def test_affine_of_two_runs(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("study", "affine", run, run, "--out", tmp_path, "--json")
    record = json.loads(said.out)
    assert [entry["run"] for entry in record["runs"]] == [str(run)] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"affine.json", "affine.svg", "affine.png"}
    assert "linear-like replicates" in cli("study", "affine", run, "--out", tmp_path).out


def test_a_network_by_name_keeps_its_folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "linear-like" in cli("study", "affine", "digits-resnet10-192").out
    assert [file.name for file in tmp_path.rglob("*.json")] == ["affine.json"]


@pytest.mark.parametrize("verb", ["dimension", "affine"])
def test_a_missing_run_is_one_line_and_nothing_is_made(cli: Cli, tmp_path: Path, verb: str) -> None:
    said = cli("study", verb, tmp_path / "nowhere")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "nowhere" in said.err
    assert list(tmp_path.iterdir()) == []


def test_too_few_samples_are_refused_before_anything_is_made(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("study", "dimension", run, "--samples", 1, "--out", tmp_path / "new")
    assert said.err.startswith("deepshare: samples 1")
    assert list(tmp_path.iterdir()) == []
