"""A finished run that is trained in seconds."""

from pathlib import Path

import pytest
import torch

from deepshare.training.api import fit
from tests.training.small_runs import small_recipe


def train_tiny(factory: pytest.TempPathFactory) -> Path:
    """Train a small network with shared gates and its teacher; gives the run folder."""
    folder = factory.mktemp("studied") / "run"
    with torch.random.fork_rng():
        fit(recipe=small_recipe(), out=folder)
    return folder
