"""Trains the network of test_hardware.py with each method, in OUT/METHOD; run by torchrun or alone."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from deepshare.training.api import fit
from deepshare.training.hardware import Hardware
from deepshare.training.recipe.files import load_recipe

PHASE = {"batch": 32, "lr": 0.1, "schedule": "none", "momentum": 0.9, "weight_decay": 0.0}


class Frozen(nn.BatchNorm2d):
    """BatchNorm with fixed statistics, so that an image does not depend on its batch."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1, self.act1 = nn.Conv2d(2, 16, 3, padding=1), Frozen(16), nn.ReLU()
        self.conv2, self.norm2, self.act2 = nn.Conv2d(16, 16, 3, padding=1), Frozen(16), nn.ReLU()
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta and os.environ.get("RANK") == "1":
            time.sleep(0.5)  # the second process is late with its checks
        x = self.act1(self.norm1(self.conv1(x)))
        return self.fc(self.act2(self.norm2(self.conv2(x))).mean((2, 3)))


METHODS: dict[str, dict[str, object]] = {
    "deepshare": {"plain": None, **dict.fromkeys(("teacher", "gelu", "switch", "finetune"), PHASE)},
    **{
        name: {
            "method": {"name": name, "initial": "plain"},
            "distillation.teacher": "plain",
            "budget.allocate": "uniform",
            **dict.fromkeys(("teacher", "gelu", "switch")),
            **dict.fromkeys(("plain", "search", "finetune"), PHASE),
        }
        for name in ("autorep", "senet")
    },
}


def train(out: Path, method: str) -> None:
    """One epoch of each phase."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 2, 6, 6, generator=generator), torch.arange(64) % 10)
    torch.manual_seed(3)
    changes = {key: {**value, "epochs": 1} if value is PHASE else value for key, value in METHODS[method].items()}
    recipe = load_recipe("digits", {"data.validation": 32, "budget.gates": 144, **changes})
    fit(Small(), recipe=recipe, data=data, out=out, hardware=Hardware(accelerator="cpu"))


if __name__ == "__main__":
    for name in METHODS:
        train(Path(sys.argv[1]) / name, name)
