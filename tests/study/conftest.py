"""Finished runs for studies to look at."""

from pathlib import Path

import pytest
import torch

from deepshare.training.fit import fit
from tests.training.conftest import small_recipe


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with shared gates, not to be changed."""
    folder = tmp_path_factory.mktemp("studied") / "run"
    with torch.random.fork_rng():
        fit(recipe=small_recipe(), out=folder)
    return folder
