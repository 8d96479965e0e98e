"""Finished runs for studies to look at."""

from pathlib import Path

import pytest
import torch

from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from tests.study.tiny_runs import train_tiny
from tests.training.small_runs import SMALL


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with shared gates, not to be changed."""
    return train_tiny(tmp_path_factory)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the plain network, not to be changed."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    changes = {key: value for key, value in SMALL.items() if key.split(".")[0] in ("model", "data", "plain")}
    with torch.random.fork_rng():
        fit(recipe=load_recipe("digits-plain", changes), out=folder)
    return folder
