"""Selective network linearisation (SNL): every neuron learns a mask between ReLU and identity.

A neuron computes c ReLU(x) + (1 - c) x. The masks c start at 1 and are trained with the weights, under a lasso that
grows whenever the count of ReLUs stops falling, until few enough are left. The counts per site can divide a budget. As
a method it then gives the gates to the largest masks and finetunes the weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from deepshare.methods.base import (
    Gates,
    Images,
    Method,
    MethodContext,
    Positive,
    Rate,
    RecipeView,
    Settings,
    register,
    swap,
)
from deepshare.methods.gated_polynomial import GatedPolynomial, gated, give_gates
from deepshare.sharing.activation import laid_out
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.sites import Site, find_sites


class MaskedReLU(NeuronActivation):
    """A ReLU with one mask per neuron, shared over the batch.

    Attributes:
        site: Site that it replaces.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.mask = nn.Parameter(torch.ones(site.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Apply c ReLU(x) + (1 - c) x, which is x + c ReLU(-x)."""
        maps = x.reshape(x.shape[0], *self.mask.shape)
        return torch.addcmul(maps, laid_out(self.mask, maps), F.relu(-maps)).reshape(x.shape)

    def unfinished(self) -> tuple[str, str] | None:
        """A mask between 0 and 1 is no gate."""
        if bool(((self.mask == 0) | (self.mask == 1)).all()):
            return None
        return "its masks are still between 0 and 1", "finish its training, which makes them binary"

    def form(self) -> NeuronForm:
        """Neurons without a ReLU pass."""
        return NeuronForm(mask=self.mask.bool())


class SNLSettings(Settings):
    """Selective network linearisation, as a method or to count the gates of each site.

    The method takes its rates and epochs from [search]; gates, lr, batch and max_epochs are for the other use.
    """

    gates: Gates | None = None  # the count at which it stops; None: the budget
    lasso: Rate = 1e-5  # weight of the sum of the masks in the loss
    growth: Annotated[float, Field(gt=1)] = 1.1
    grow_from: Annotated[int, Field(ge=0)] = 5  # the epoch, from 0, after which the lasso may first grow
    threshold: Rate = 1e-2
    lr: Rate = 1e-3
    batch: Positive = 128
    max_epochs: Positive = 2000

    @property
    def of_method(self) -> dict[str, Any]:
        """Keys of the method itself."""
        return self.model_dump(include={"lasso", "growth", "grow_from", "threshold"})


@register("snl", order=3)
@dataclass
class SNL(Method):
    """Masks under a lasso that grows until the budget is reached.

    Attributes:
        input_size: Size of one input without the batch.
        gates: Number of ReLUs at which the search ends.
        lasso: Weight of the sum of all |c| in the loss; it grows.
        growth: Factor of its growth.
        grow_from: First epoch, counted from 0, after which it may grow.
        threshold: Masks above it count as ReLUs.
        lowest: Lowest count so far.
    """

    input_size: Sequence[int]
    gates: int
    lasso: float = 1e-5
    growth: float = 1.1
    grow_from: int = 5
    threshold: float = 1e-2
    lowest: float = field(default=float("inf"))

    phases: ClassVar = ("search", "finetune")
    section: ClassVar = SNLSettings
    always: ClassVar = True  # a budget may be divided by SNL, too

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the settings of [snl]."""
        return cls(context.input_size, context.gates, **recipe.section(SNLSettings).of_method)

    def convert(self, model: nn.Module) -> nn.Module:
        """Put a mask at every site of a plain network, with equal outputs."""
        return replace_sites(model, find_sites(model, self.input_size), MaskedReLU)

    def build_phase_modules(self, model: nn.Module, phase: str) -> None:
        """Build fixed gates for `finetune`."""
        if phase == "finetune":
            swap(model, MaskedReLU, lambda module: GatedPolynomial(module.site.shape))

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Before `finetune`, give the gates of the budget to the largest masks.

        A long search ends just below the budget. A short one may end above it, or overshoot.
        """
        if phase != "finetune":
            return
        scores = [module.mask.detach() for module in masks(model)]
        self.build_phase_modules(model, phase)
        give_gates(model, scores, self.gates)

    def penalty(self, model: nn.Module) -> Tensor | None:
        """Return the lasso over all masks, during the search."""
        sums = [module.mask.abs().sum() for module in masks(model)]
        return self.lasso * torch.stack(sums).sum() if sums else None

    def on_epoch_end(self, model: nn.Module, phase: str, epoch: int) -> bool:
        """Count the ReLUs; grow the lasso if there are not fewer, and end the phase if there are few enough."""
        if phase == "finetune":
            return False
        left = sum(self.counts(model).values())
        if left < self.lowest:
            self.lowest = left
        elif epoch >= self.grow_from:
            self.lasso *= self.growth
        return left <= self.gates

    def counts(self, model: nn.Module) -> dict[str, int]:
        """Return the ReLUs that are left at each site."""
        fixed = {name.removesuffix(".activation"): module.gates for name, module in gated(model)}
        return fixed or {module.site.name: int((module.mask > self.threshold).sum()) for module in masks(model)}

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the lasso and the remaining ReLUs, in all and at each site."""
        counts = self.counts(model)
        sites = {f"gates.{name}": float(count) for name, count in counts.items()}
        return {"lasso": self.lasso, "gates": float(sum(counts.values())), **sites}

    def state(self) -> dict[str, float]:
        """Return the lasso and the lowest count."""
        return {"lasso": self.lasso, "lowest": self.lowest}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the lasso and the lowest count."""
        self.lasso, self.lowest = state["lasso"], state["lowest"]


def masks(model: nn.Module) -> Iterator[MaskedReLU]:
    """Iterate over the masked ReLUs of a network, in the order of modules."""
    return (module for module in model.modules() if isinstance(module, MaskedReLU))
