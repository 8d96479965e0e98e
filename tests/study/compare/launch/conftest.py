"""The three runs without a launch."""

import pytest

from deepshare.study.compare.runner import Limits, Runner
from deepshare.training.reporter import Reporter
from tests.study.compare.launch.three_runs import LONG, runner_of, three_runs


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The three runs one after the other in this process; not to be changed."""
    folder = tmp_path_factory.mktemp("plain")
    runner = runner_of(three_runs(folder, LONG), folder)
    assert runner.run(Limits(), Reporter, lambda outcome: None) == "finished"
    return runner
