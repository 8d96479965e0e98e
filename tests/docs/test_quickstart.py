"""The commands of Quick start, run one after the other in an empty folder."""

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.docs.pages import DOCS, blocks, shell_lines

PAGE = DOCS / "quickstart.md"
# The same commands, on fewer images for fewer epochs.
FEWER = "--data.subset 128 --teacher.epochs 1 --gelu.epochs 1 --switch.epochs 2 --finetune.epochs 1"
LEFT = {
    "plan.json",
    "report.html",
    "digits.onnx",
    "runs/digits/result.json",
    "runs/digits/study/dimension.svg",
    "runs/digits/study/affine.svg",
}


def run(command: Cli, line: str) -> str:
    said = command(*shlex.split(line, comments=True)[1:])
    assert said.code == 0, f"{line}: {said.err}"
    return said.out


@pytest.mark.usefixtures("parties_are_threads")
def test_every_command_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in shell_lines(PAGE) if line.startswith("deepshare ")]
    assert len(lines) == 11
    for line in lines:
        if "--engine crypten" in line and not find_spec("crypten"):
            continue
        said = run(cli, f"{line} {FEWER}" if line.startswith("deepshare train") else line)
        assert said, f"{line} says nothing"
    assert {file for file in LEFT if not (tmp_path / file).is_file()} == set()


def test_the_cost_is_what_the_page_shows(cli: Cli) -> None:
    shown = next(block[1] for block in blocks(PAGE, "") if "sent by a party" in block[1])
    printed = run(cli, "deepshare plan resnet18 --budget 6000 --cost crypten")
    assert shown in printed
