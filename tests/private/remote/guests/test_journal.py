"""The log of a server. What it counts is tested with the commands, in tests/cli."""

import io
import sys
from collections.abc import Iterator

import pytest

from deepshare.private.remote.guests.journal import LOGGER, start_logging


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    before = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    yield
    LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before


def test_a_log_whose_stream_is_closed_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        gone = io.StringIO()
        patch.setattr(sys, "stderr", gone)
        start_logging("info", as_json=False)
        gone.close()
        LOGGER.info("to nobody")
    LOGGER.info("to whoever reads now")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].endswith("INFO    to whoever reads now")
