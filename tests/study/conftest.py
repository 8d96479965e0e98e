"""Finished runs for studies to look at."""

from pathlib import Path

import pytest
import torch

from deepshare.training.fit import fit
from tests.training.conftest import small_recipe


def train_tiny(factory: pytest.TempPathFactory) -> Path:
    """Train a small network with shared gates and its teacher; gives the run folder."""
    folder = factory.mktemp("studied") / "run"
    with torch.random.fork_rng():
        fit(recipe=small_recipe(), out=folder)
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with shared gates, not to be changed."""
    return train_tiny(tmp_path_factory)
