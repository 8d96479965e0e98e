"""DELPHI: whole layers gradually become one fixed quadratic; the others keep their ReLUs.

Its planner searches for the layers with a population of networks. Here the last layers that fit the budget keep their
ReLUs, since the other methods leave most gates there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import BudgetError
from deepshare.methods.base import Images, Method, MethodContext, RecipeView, register, swap
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import Site, find_sites

QUADRATIC = (0.1997, 0.5002, 0.1992)  # factors of x^2, x and 1


class BlendedReLU(nn.Module):
    """r ReLU6(x) + (1 - r) (0.1997 x^2 + 0.5002 x + 0.1992)."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.ratio = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Blend."""
        square, linear, constant = QUADRATIC
        return self.ratio * F.relu6(x) + (1 - self.ratio) * ((square * x + linear) * x + constant)


@register("delphi", order=9)
@dataclass
class Delphi(Method):
    """Replaces ReLUs by the quadratic.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
    """

    input_size: Sequence[int]
    gates: int

    phases: ClassVar = ("search", "finetune")
    without_gates: ClassVar = True

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the budget."""
        return cls(context.input_size, context.gates)

    def convert(self, model: nn.Module) -> nn.Module:
        """Put a blend at every site that loses its ReLU."""
        sites = find_sites(model, self.input_size)
        kept = keep_last(sites, self.gates)
        return replace_sites(model, sites, lambda site: nn.ReLU() if site.name in kept else BlendedReLU(site))

    def build_phase_modules(self, model: nn.Module, phase: str) -> None:
        """Build the quadratic alone for `finetune`."""
        if phase == "finetune":
            swap(model, BlendedReLU, _quadratic)

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Leave the blend before `finetune`."""
        self.build_phase_modules(model, phase)

    def on_epoch_start(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Take one step from ReLU6 to the quadratic in each epoch of `search`."""
        for blend in _blends(model):
            blend.ratio = 1 - (epoch + 1) / epochs

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the share of ReLU6 in the blends."""
        return {"ratio": max((blend.ratio for blend in _blends(model)), default=0.0)}


def keep_last(sites: Sequence[Site], gates: int) -> set[str]:
    """Return the names of the last sites that fit a budget, tried one by one from the end; none for a budget of 0.

    Raises:
        BudgetError: Even the smallest site is too large.
    """
    kept: set[str] = set()
    if not gates:
        return kept
    for site in reversed(sites):
        if site.neurons <= gates:
            kept.add(site.name)
            gates -= site.neurons
    if not kept:
        least = min(site.neurons for site in sites)
        raise BudgetError(f"delphi keeps whole layers and {gates:,} gates are none: give at least {least:,}")
    return kept


def _quadratic(blend: BlendedReLU) -> GatedPolynomial:
    shape = blend.site.shape
    module = GatedPolynomial(shape, [torch.full((1, 1, 1), value) for value in QUADRATIC])
    module.set_mask(torch.zeros(shape, dtype=torch.bool))
    return module


def _blends(model: nn.Module) -> Iterator[BlendedReLU]:
    return (module for module in model.modules() if isinstance(module, BlendedReLU))
