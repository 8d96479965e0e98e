import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


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
