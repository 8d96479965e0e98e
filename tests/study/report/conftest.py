"""Runs as the report reads them."""

from pathlib import Path

import pytest

from deepshare.study import report
from deepshare.study.report import Run


@pytest.fixture(scope="session")
def shared(tiny_run: Path) -> Run:
    return report.read([tiny_run])[0]


@pytest.fixture(scope="session")
def plain(plain_run: Path) -> Run:
    return report.read([plain_run])[0]
