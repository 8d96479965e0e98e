"""A recipe that runs through all phases in a second, and a reporter that interrupts it."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

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
Finished = tuple[Path, nn.Module]  # the folder of a finished run, and its network


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


class Notes(Reporter):
    """What a run told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[str, int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, phase: str, epochs: int, first: int) -> None:
        self.phases.append((phase, epochs, first))


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two networks have the same weights, to the bit."""
    return all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())
