"""Behaviour common to all verbs."""

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from deepshare.cli import EXAMPLES, app
from tests.cli.command import Cli

COMMAND = Path(sys.executable).with_name("deepshare")


def verbs(app: App, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    yield list(path)
    for name in app:
        if not name.startswith("-"):
            yield from verbs(app[name], (*path, name))


VERBS = list(verbs(app))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_takes_less_than_half_a_second(verb: list[str]) -> None:
    """Of processor time; on a slow machine, than a few times what the library of the command line takes to import."""
    seconds, done = processor_time([str(COMMAND), *verb, "--help"])
    assert done.startswith(" ".join(["Usage: deepshare", *verb]))
    if seconds >= 0.5:
        library, _ = processor_time([sys.executable, "-c", "import cyclopts, rich.console"])
        assert seconds < 4 * library


def processor_time(command: list[str]) -> tuple[float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def test_help_does_not_import_torch() -> None:
    script = (
        f"import sys\nfrom deepshare.cli import main\nfor verb in {VERBS}:\n"
        "    main([*verb, '--help'])\n    assert 'torch' not in sys.modules, verb"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.count("Usage: deepshare") == len(VERBS) and done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspekt", "resnet18"], ["inspekt", "inspect"]),
        (["inspect"], ["MODEL"]),
        (["plan", "resnet18"], ["--budget"]),
        (["plan", "resnet18", "--bugdet", "6000"], ["--bugdet", "--budget"]),
        (["inspect", "resnet18", "--colour"], ["--colour"]),
        (["inspect", "resnet18", "resnet34"], ["resnet34"]),
        (["plan", "resnet18", "--budget", "6000", "--max-group", "two"], ["--max-group", "two"]),
        (["export", "resnet18", "--out", "x.onnx"], ["--plan"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], words: list[str]) -> None:
    said = cli(*arguments)
    assert (said.out, said.code) == ("", 2)
    assert said.err.startswith("deepshare: ")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err


def test_the_real_command_prints_the_error_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, "inspect", "resnet81"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("deepshare: ")
    assert "resnet18" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_was_deleted_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    code = f"cd {gone} && rmdir {gone} && exec {COMMAND} private serve x"
    gone.mkdir()
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "deepshare: the folder that you are in was deleted: change to another\n",
    )


def test_a_fault_of_ours_is_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("deepshare.sharing.sites.find_sites", broken)
    with pytest.raises(ZeroDivisionError):
        cli("inspect", "resnet10")


@pytest.mark.parametrize(("verb", "use"), [(verb, use) for verb, uses in EXAMPLES.items() for use in uses])
def test_the_examples_of_help_parse(verb: str, use: str) -> None:
    app.parse_args(shlex.split(f"{verb} {use}"), print_error=False, exit_on_error=False)


def test_every_verb_has_examples() -> None:
    assert {" ".join(verb) for verb in VERBS if verb} == set(EXAMPLES)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_fit_80_columns_and_can_be_copied(verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli(*verb.split(), "--help").out
    assert max(map(len, said.splitlines())) <= 80
    shown = said.partition("\nExamples:\n")[2].replace("\\\n", "")
    assert [shlex.split(line) for line in shown.splitlines()] == [
        ["deepshare", *verb.split(), *shlex.split(use)] for use in EXAMPLES[verb]
    ]


def test_help_ends_with_examples(cli: Cli) -> None:
    done = cli("private", "run", "--help")
    assert done.out.rstrip().splitlines()[-2:] == [
        "  deepshare private run digits-resnet10-192 --samples 8",
        "  deepshare private run runs/digits -e crypten --layers",
    ]


def test_completion_is_installed_by_one_command(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    command = [sys.executable, "-m", "deepshare", "--install-completion"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [file for file in tmp_path.rglob("*") if file.is_file() and "deepshare" in file.read_text()]
    assert written, done.stdout
