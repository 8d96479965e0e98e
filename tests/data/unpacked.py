"""The real data sets, unpacked once for all test runs."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

SHARED = Path(__file__).parents[3] / "shared" / "data"
Unpack = Callable[[str], Path]


def unpacker() -> Unpack:
    """A function that unpacks a data set by name and returns its folder; skips the test where there is no data."""
    if not (SHARED / "unpack").exists():
        pytest.skip(f"the real data is missing: no {SHARED}")
    folder = Path.home() / ".cache" / "deepshare-tests"
    folder.mkdir(parents=True, exist_ok=True)

    def unpack(name: str) -> Path:
        with FileLock(folder / ".lock"):  # several test processes may want the same
            subprocess.run([SHARED / "unpack", folder, name], check=True, capture_output=True)
        return folder

    return unpack
