"""One torch thread for each test process, seeded random numbers, and the fixtures that several rooms use."""

import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

from tests.cli.command import Cli, runner
from tests.data.layouts import write_camvid
from tests.data.unpacked import Unpack, unpacker
from tests.disk import Disk
from tests.installed import environment, wheel  # noqa: F401 - fixtures
from tests.private.runtime.threads import run_parties_as_threads

GIVEN = os.environ.get("DEEPSHARE_TEST_SEED")
SEED = int(GIVEN or 0)
DRAWN = pytest.StashKey[int]()

torch.set_num_threads(1)
# A shell lets what it starts in the background ignore SIGINT, and with it the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("random", print_blob=True)
hypothesis.settings.load_profile("repeatable")


def pytest_report_header() -> str:
    return f"random seed: {SEED} (set by DEEPSHARE_TEST_SEED)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Random seed", f"repeat with DEEPSHARE_TEST_SEED={item.stash.get(DRAWN, SEED)}"))
    return report


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    random.seed(SEED)
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - for libraries that draw from the global generator
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="session")
def _disks_are_not_waited_for() -> Iterator[None]:
    """Write files as ever, but leave it to the system when they reach the disk: tests kill processes, not machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """What a power cut would leave."""
    return Disk(monkeypatch)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that differ in every run of the tests, unless a seed is given."""
    seed = request.node.stash[DRAWN] = SEED if GIVEN else random.SystemRandom().getrandbits(32)
    return random.Random(seed)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""
    return runner(capsys)


@pytest.fixture
def parties_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run parties of gateshare in threads of this process."""
    run_parties_as_threads(monkeypatch)


@pytest.fixture(scope="session")
def real_data() -> Unpack:
    """Unpack a real data set and return its folder."""
    return unpacker()


@pytest.fixture
def camvid_dir(tmp_path: Path) -> Path:
    """A folder with a tiny CamVid."""
    return write_camvid(tmp_path)
