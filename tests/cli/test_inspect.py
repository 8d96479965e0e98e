import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Cli


def test_the_table_has_a_row_for_each_site_and_the_total(cli: Cli) -> None:
    said = cli("inspect", "resnet18")
    lines = said.out.splitlines()
    assert (said.code, said.err, len(lines)) == (0, "", 2 + 16 + 2)
    assert lines.pop() == "crypten, gateshare, gateshare-2pc, spu-cheetah, spu-semi2k: runs"
    assert lines[2].split() == ["layer1.0.act1", "64", "32x32", "65,536", "module"]
    assert lines[-1].startswith("491,520 ReLUs at 16 sites")


def test_json_holds_the_same(cli: Cli) -> None:
    found = json.loads(cli("inspect", "resnet18", "--json").out)
    assert (found["model"], found["input_size"], found["neurons"]) == ("resnet18", [3, 32, 32], 491_520)
    assert sum(site["neurons"] for site in found["sites"]) == 491_520
    assert found["others"] == []


def test_the_input_size_counts(cli: Cli) -> None:
    found = json.loads(cli("inspect", "resnet18", "--input-size", "3x64x64", "--json").out)
    assert found["neurons"] == 1_966_080


def test_networks_of_other_libraries_and_what_else_compares(cli: Cli) -> None:
    found = json.loads(cli("inspect", "torchvision:resnet18", "--json").out)
    assert (found["neurons"], len(found["sites"])) == (2_308_096, 17)
    assert {other["what"] for other in found["others"]} == {"max_pool2d"}


def test_relu6_becomes_relu_only_when_asked(cli: Cli) -> None:
    plain = json.loads(cli("inspect", "torchvision:mobilenet_v2", "--json").out)
    changed = json.loads(cli("inspect", "torchvision:mobilenet_v2", "--relu6-to-relu", "--json").out)
    assert (plain["neurons"], {other["what"] for other in plain["others"]}) == (0, {"relu6"})
    assert (len(changed["sites"]), changed["others"]) == (35, [])
    assert 2 * changed["neurons"] == sum(other["comparisons"] for other in plain["others"])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnet19", "resnet18"),
        ("wrn-22-8", "wrn22-8"),
        ("timm:resnet5o", "resnet50"),
        ("torchvision:resnet81", "resnet18"),
        ("smp:Unot/resnet18", "Unet"),
        ("smp:Unet/resnet8", "resnet18"),
        ("tim:resnet18", "timm"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(cli: Cli, name: str, nearest: str) -> None:
    said = cli("inspect", name)
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert f'did you mean "{nearest}"' in said.err


@pytest.mark.parametrize("size", ["3x32", "32", "3x32x32x1", "3x0x32", "3x-1x32", "3,32,32", "axbxc", "", "1x32x32"])
def test_a_wrong_input_size_is_refused(cli: Cli, size: str) -> None:
    said = cli("inspect", "resnet10", f"--input-size={size}")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "size" in said.err
    assert size in said.err


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m deepshare inspect resnet18 | head -1"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("site")
    assert said.stderr == ""


def test_arguments_of_a_network_reach_every_verb_that_builds_one(cli: Cli, tmp_path: Path) -> None:
    wide = ("resnet10", "--model.arguments.width", "8", "--model.arguments.num_classes", "3")
    assert json.loads(cli("inspect", *wide, "--json").out)["neurons"] == 8 * (2 * 1024 + 4 * 256 + 8 * 64 + 16 * 16)
    made, graph = tmp_path / "plan.json", tmp_path / "graph.onnx"
    assert cli("plan", *wide, "--budget", "10%", "--out", str(made)).code == 0
    said = cli("export", *wide, "--plan", str(made), "--out", str(graph))
    assert (said.code, said.err) == (0, "") and graph.stat().st_size < 1e6
    refused = cli("inspect", "resnet10", "--model.arguments.depht", "3")
    assert refused.code == 2 and "cannot be built with depht=3" in refused.err


def test_a_name_that_promises_weights_is_told_that_there_are_none(cli: Cli) -> None:
    said = cli("inspect", "timm:resnet10t.c3_in1k", "--input-size", "3x32x32", "--json")
    assert said.err == (
        "timm:resnet10t.c3_in1k: no weights are fetched: deepshare train and export take them with --weights\n"
    )
    assert json.loads(said.out)["neurons"] > 0
