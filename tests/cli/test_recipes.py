"""`deepshare recipes` lists every recipe with its finished runs."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.command import Cli


def test_every_recipe_is_listed_with_its_state(cli: "Cli") -> None:
    said = cli("recipes")
    assert said.code == 0
    line = next(line for line in said.out.splitlines() if line.startswith("cifar100-resnet18-6k "))
    assert "76.13% (table 1)" in line
    assert line.endswith("not run to the end")


def test_the_list_as_json(cli: "Cli") -> None:
    rows = {row["recipe"]: row for row in json.loads(cli("recipes", "--json").out)}
    assert rows["digits"]["paper"] == ""
    assert rows["cifar100-resnet18-6k"]["runs"] == []


def test_one_recipe_shows_every_key(cli: "Cli") -> None:
    shown = cli("recipes", "digits").out
    assert "[gelu]\n" in shown and "epochs = 8\n" in shown and "channels = 1\n" in shown
    assert json.loads(cli("recipes", "digits", "--json").out)["gelu"]["epochs"] == 8
    unknown = cli("recipes", "digit")
    assert unknown.code == 2 and "digits" in unknown.err
