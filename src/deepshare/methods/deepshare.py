"""DeepShare as a method: gates shared as planned; soft, then switched channel by channel, then hard."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from deepshare.methods.base import Method
from deepshare.sharing.convert import share
from deepshare.sharing.gates import hard_share, set_progress, set_sharpness, shared_relus
from deepshare.sharing.plan import Plan


@dataclass
class DeepShare(Method):
    """Gates shared as planned.

    Attributes:
        plan: Who shares with whom.
        start: Start values of alpha and beta.
        sharpness: Of the soft gate, the paper's gamma.
        seed: Of the uniform start values.
        replicates: Whether there are replicate channels; without them the network is trimmed to its prototypes.
    """

    plan: Plan
    start: Literal["identity", "uniform"] = "identity"
    sharpness: float = 1.0
    seed: int = 0
    replicates: bool = True

    def convert(self, model: nn.Module) -> nn.Module:
        """Share the gates of a plain network."""
        shared = share(model, self.plan, start=self.start, generator=torch.Generator().manual_seed(self.seed))
        set_sharpness(shared, self.sharpness)
        if not self.replicates:
            trim(shared)
        return shared

    def start_epoch(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Soft gates in `gelu`, one more step to hard ones in each epoch of `switch`, hard gates anywhere else."""
        steps = {"gelu": 0.0, "switch": (epoch + 1) / epochs}
        set_progress(model, steps.get(phase, 1.0))

    def measures(self, model: nn.Module) -> dict[str, float]:
        """The share of channels with a hard gate."""
        return {"hard_share": hard_share(model)}


def trim(model: nn.Module) -> None:
    """Silence the replicate channels of a shared network without learned alpha, as if they had been cut off."""
    for site in shared_relus(model):
        site.alpha[site.prototypes :] = 0
