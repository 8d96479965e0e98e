from collections.abc import Callable
from typing import NamedTuple

import pytest

from deepshare.cli import main


class Said(NamedTuple):
    """What a command said and how it ended."""

    out: str
    err: str
    code: object


Cli = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""

    def run(*arguments: object) -> Said:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return Said(*capsys.readouterr(), code)

    return run
