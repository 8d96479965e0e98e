"""A browser for tests that look at a page. GitHub's Ubuntu machines have one, so CI need not install it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Start the system's Chromium, or playwright's own; without either the test is skipped."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import sync_playwright

    system = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        if system is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium here: install one, or run `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=system, args=FLAGS)
        yield browser
        browser.close()
