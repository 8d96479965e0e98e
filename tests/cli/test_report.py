import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.study.report.parsed_page import parse
from tests.study.tiny_runs import train_tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory)


def test_the_page_is_written_and_named(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = cli("report", run, "-o", out)
    assert (said.out, said.err, said.code) == (f"written to {out}\n", "", 0)
    shown = parse(out.read_text())
    assert shown.find("dl")[0].find("dd")[0].text == run.name
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_json_has_the_numbers_of_every_run(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = cli("report", run, run, "--out", out, "--json")
    told = json.loads(said.out)
    result = json.loads((run / "result.json").read_text())
    assert told["out"] == str(out)
    assert [entry["run"] for entry in told["runs"]] == [str(run)] * 2
    assert [entry["gates"] for entry in told["runs"]] == [result["gates"]] * 2
    assert told["runs"][0]["score"] == result["test"]["last"]["accuracy"]
    assert len(parse(out.read_text()).find("article")) == 2


def test_the_same_runs_make_the_same_page(cli: Cli, run: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        cli("report", run, "-o", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tmp}/nowhere", "-o", "{tmp}/page.html"], "no folder {tmp}/nowhere"),
        (["{run}", "{tmp}", "-o", "{tmp}/page.html"], "{tmp} is no run folder"),
        (["{unfinished}", "-o", "{tmp}/page.html"], "is not finished"),
        (["{bare}", "-o", "{tmp}/page.html"], "its weights are not there"),
        (["{run}", "-o", "{tmp}/missing/page.html"], "cannot write {tmp}/missing/page.html"),
        (["{run}", "-o", "{tmp}"], "it is a folder"),
        ([], "requires an argument"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, run: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    bare, unfinished = tmp_path / "bare", tmp_path / "unfinished"
    for folder in (bare, unfinished):
        shutil.copytree(run, folder)
        (folder / "model.safetensors").unlink()
    (unfinished / "result.json").unlink()
    places = {"tmp": tmp_path, "run": run, "unfinished": unfinished, "bare": bare}
    said = cli("report", *(argument.format(**places) for argument in arguments))
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert words.format(**places) in said.err
    assert not (tmp_path / "page.html").exists()


def test_the_help_says_what_it_takes(cli: Cli) -> None:
    said = cli("report", "--help").out
    assert "RUN [RUN...]" in said
    assert all(word in said for word in ("--out", "-o", "--data-dir", "--json"))
