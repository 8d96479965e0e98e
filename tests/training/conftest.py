"""Fixtures of training: a small recipe, one device, and a run that is finished."""

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from deepshare.training.api import fit
from tests.training.small_runs import Small, small_recipe


@pytest.fixture(scope="session")
def small() -> Small:
    return small_recipe


@pytest.fixture(scope="session")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """The folder of a finished run, not to be changed, and the network that fit returned."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with torch.random.fork_rng():
        return folder, fit(recipe=small_recipe(), out=folder)
