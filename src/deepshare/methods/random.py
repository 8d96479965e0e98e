"""Random gates: neurons drawn at random keep their ReLUs, the others become linear.

The control for methods that choose their gates. With the counts of another method (`budget.allocate = "counts.json"`)
it keeps that method's number of gates at each site and draws only their places, as random tickets do in pruning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from deepshare.errors import BudgetError
from deepshare.methods.base import Method, MethodContext, RecipeView, Settings, register
from deepshare.methods.gated_polynomial import GatedPolynomial, gated, keep_largest, site_budgets
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import Site, find_sites


class RandomSettings(Settings):
    """Gates at random places."""

    unit: Literal["neuron", "channel"] = "neuron"  # gates are drawn one by one, or for whole channels


@register("random")
@dataclass
class RandomGates(Method):
    """Gates at random places, fixed before training.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
        unit: Whether single neurons are drawn, or whole channels.
        weights: Weights of the sites in the division of the budget; by default their neurons.
        seed: Of the draw.
    """

    input_size: Sequence[int]
    gates: int
    unit: Literal["neuron", "channel"] = "neuron"
    weights: Mapping[str, float] | None = None
    seed: int = 0

    section: ClassVar = RandomSettings
    divides_budget: ClassVar = True

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the settings of [random]."""
        unit = recipe.section(RandomSettings).unit
        return cls(context.input_size, context.gates, unit, context.weights, context.seed("gates"))

    def convert(self, model: nn.Module) -> nn.Module:
        """Draw the gates of every site.

        Raises:
            BudgetError: The budget of no site is enough for a channel.
        """
        sites = find_sites(model, self.input_size)
        counts = site_budgets(sites, self.gates, self.weights)
        generator = torch.Generator().manual_seed(self.seed)

        def make(site: Site) -> GatedPolynomial:
            module = GatedPolynomial(site.shape)
            module.set_mask(self._draw(site, counts[site.name], generator))
            return module

        network = replace_sites(model, sites, make)
        if not any(module.gates for _, module in gated(network)):
            least = min(site.height * site.width for site in sites)
            raise BudgetError(f"random channels have {least:,} gates or more: give a larger budget, or draw neurons")
        return network

    def _draw(self, site: Site, count: int, generator: torch.Generator) -> Tensor:
        if self.unit == "neuron":
            return keep_largest([torch.rand(site.shape, generator=generator)], count)[0]
        channels = count // (site.height * site.width)
        kept = keep_largest([torch.rand(site.channels, generator=generator)], channels)[0]
        return kept.view(-1, 1, 1).expand(site.shape)

    def measures(self, model: nn.Module) -> dict[str, float]:
        """The gates."""
        return {"gates": float(sum(module.gates for _, module in gated(model)))}
