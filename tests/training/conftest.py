"""A recipe that runs through all phases in a second, and what is needed to take it apart."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from deepshare.training.api import fit
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.reporter import EpochLine, Reporter

SMALL = {
    "model.arguments.width": 8,
    "budget.gates": "20%",
    "data.subset": 128,
    "data.validation": 64,
    "teacher.epochs": 1,
    "plain.epochs": 1,
    "gelu.epochs": 2,
    "switch.epochs": 2,
    "finetune.epochs": 2,
}

Small = Callable[..., Recipe]


def small_recipe(**changes: object) -> Recipe:
    """The digits recipe on a few images; a change such as gelu__epochs=1 is that of gelu.epochs."""
    return load_recipe("digits", {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}})


class StoppedError(Exception):
    """Raised by `StopAfter`."""


class StopAfter(Reporter):
    """Interrupts a run after an epoch of a phase."""

    def __init__(self, phase: str, epoch: int) -> None:
        self.last = phase, epoch

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        if (line.phase, line.epoch) == self.last:
            raise StoppedError


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
