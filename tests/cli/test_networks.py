"""`deepshare networks`, and a name in the place of a run folder."""

import json
from pathlib import Path

from deepshare.sharing.onnx import count_comparisons
from deepshare.training.run.networks import card, find, names
from tests.cli.command import Cli

SHARED = "cifar100-resnet18w16-1536"


def test_networks_are_listed_with_accuracy_gates_size_and_training(cli: Cli) -> None:
    listed = cli("networks").out
    line = next(line for line in listed.splitlines() if line.startswith(f"{SHARED} "))
    assert "1,536 of 122,880" in line and "48.48% accuracy" in line and "2.9 MB" in line and "8 gelu + 5 switch" in line
    assert [entry["name"] for entry in json.loads(cli("networks", "--json").out)] == names()


def test_a_card(cli: Cli) -> None:
    assert cli("networks", SHARED).out == card(find(SHARED))
    assert json.loads(cli("networks", SHARED, "--json").out)["gates"] == 1536
    unknown = cli("networks", "cifar100")
    assert unknown.code == 2 and "no network is called" in unknown.err


def test_a_name_stands_for_a_run_folder(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", SHARED, "--out", tmp_path / "network.onnx").code == 0
    assert count_comparisons(tmp_path / "network.onnx") == 1536
    assert cli("private", "outline", SHARED, tmp_path / "outline.json").code == 0
    assert cli("report", SHARED, "--out", tmp_path / "report.html").code == 0
