"""DeepShare as a method: gates shared as planned; soft, then switched, then hard."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from deepshare.methods.affine_fit import SAMPLES, fit, is_untrained
from deepshare.methods.base import Images, Method
from deepshare.methods.square import curve, fading, own_share, set_own
from deepshare.sharing.convert import share
from deepshare.sharing.gates import (
    freeze_pi,
    hard_share,
    learn_pi,
    moved_share,
    set_progress,
    set_sharpness,
    shared_relus,
)
from deepshare.sharing.plan import Plan


@dataclass
class DeepShare(Method):
    """Gates shared as planned.

    Attributes:
        plan: Who shares with whom.
        start: Start values of alpha and beta; fitted ones, which are not in the paper, come nearest to the ReLUs of a
            trained network.
        sharpness: Of the soft gate, the paper's gamma.
        seed: Of the uniform start values.
        replicates: Whether there are replicate channels; without them the network is trimmed to its prototypes.
        switch_by: Whether channel after channel gets the hard gate, or all soft gates become sharper until they are
            hard, which is not in the paper.
        square: Whether every site has a square beside its gates, which is not in the paper.
        fade: Epochs in which a site's own ReLU fades, which is not in the paper.
        fade_in: The phase that begins with them.
        soft: Whether gates are soft before the switch; otherwise they are hard in all phases.
        decay_affine: Whether weight decay reaches alpha and beta.
    """

    plan: Plan
    start: Literal["identity", "uniform", "fitted"] = "identity"
    sharpness: float = 1.0
    seed: int = 0
    replicates: bool = True
    switch_by: Literal["channels", "sharpness"] = "channels"
    square: bool = False
    fade: int = 0
    fade_in: str = "gelu"
    soft: bool = True
    decay_affine: bool = True

    def convert(self, model: nn.Module) -> nn.Module:
        """Share the gates of a plain network."""
        start: Literal["identity", "uniform"] = "uniform" if self.start == "uniform" else "identity"
        shared = share(model, self.plan, start=start, generator=torch.Generator().manual_seed(self.seed))
        set_sharpness(shared, self.sharpness)
        if not self.replicates:
            trim(shared)
        if self.square:
            curve(shared)
        return shared

    def form(self, model: nn.Module, phase: str) -> None:
        """In `gelu`, where pi is learned, channels have preferences."""
        if phase == "gelu":
            learn_pi(model)

    def begin(self, model: nn.Module, phase: str, images: Images) -> None:
        """Where pi is learned, that begins with `gelu` and ends before the switch; fit what is not trained yet."""
        if self.start == "fitted" and is_untrained(model):
            self.start_epoch(model, phase, 0, 1)
            fit(model, images(SAMPLES))
        if phase == "gelu":
            learn_pi(model)
        else:
            freeze_pi(model)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Alpha and beta apart where they do not decay."""
        affine = {id(value) for site in shared_relus(model) for value in (site.alpha, site.beta)}
        if self.decay_affine or not affine:
            return super().parameter_groups(model)
        apart: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for value in model.parameters():
            apart[id(value) in affine].append(value)
        return [{"params": apart[0]}, {"params": apart[1], "weight_decay": 0.0}]

    def start_epoch(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Soft gates in `pilot` and `gelu`, one more step in each epoch of `switch`, hard gates anywhere else."""
        steps = {"pilot": 0.0, "gelu": 0.0, "switch": (epoch + 1) / epochs} if self.soft else {}
        progress = steps.get(phase, 1.0)
        if self.switch_by == "channels":
            set_progress(model, progress)
        else:
            set_progress(model, float(progress == 1))
            set_sharpness(model, sharpened(self.sharpness, progress))
        set_own(model, own_share(epoch, self.fade) if phase == self.fade_in else 0.0)

    def measures(self, model: nn.Module) -> dict[str, float]:
        """The share of channels with a hard gate, how sharp the others are and the share that moved, if they change."""
        found = {"hard_share": hard_share(model)}
        if self.switch_by == "sharpness" and found["hard_share"] < 1:
            found["sharpness"] = next(shared_relus(model)).sharpness
        if self.fade:
            found["own_relu"] = next(fading(model)).own
        moved = moved_share(model)
        return found if moved is None else {**found, "moved": moved}


def sharpened(sharpness: float, progress: float) -> float:
    """The sharpness when the width of the soft gate, 1 over its sharpness, has shrunk by a share of what it was.

    At the end the width would be nothing, which is the hard gate; the sharpness then stays as it is.

    >>> [sharpened(1.5, progress) for progress in (0, 0.25, 0.5, 0.75, 1)]
    [1.5, 2.0, 3.0, 6.0, 1.5]
    """
    return sharpness / (1 - progress) if progress < 1 else sharpness


def trim(model: nn.Module) -> None:
    """Silence the replicate channels of a shared network without learned alpha, as if they had been cut off."""
    for site in shared_relus(model):
        site.alpha[site.prototypes :] = 0
