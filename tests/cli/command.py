"""The command line, run in the process of the test."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from deepshare.cli import main

# A training run of `deepshare train -r digits` that takes seconds.
SMALL = {
    "model.arguments.width": "8",
    "budget.gates": "20%",
    "data.subset": "128",
    "data.validation": "64",
    "teacher.epochs": "1",
    "gelu.epochs": "1",
    "switch.epochs": "1",
    "finetune.epochs": "1",
}
FLAGS = [part for key, value in SMALL.items() for part in (f"--{key}", value)]


class Said(NamedTuple):
    """Output and exit code of a command."""

    out: str
    err: str
    code: object


Cli = Callable[..., Said]


def runner(capsys: pytest.CaptureFixture[str]) -> Cli:
    """A function that runs a command and returns its output."""

    def run(*arguments: object) -> Said:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return Said(*capsys.readouterr(), code)

    return run
