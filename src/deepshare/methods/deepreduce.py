"""DeepReDuce: whole stages lose their ReLUs, the least critical first, then every other layer of the rest.

Its third step, a narrower network or smaller maps, is chosen with the model: its width and the stride of its stem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

from torch import nn

from deepshare.errors import BudgetError, UnsupportedModelError
from deepshare.methods.base import Method, MethodContext, RecipeView, register
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.planning import group_sites
from deepshare.sharing.sites import Site, find_sites

CRITICALITY = (2, 1, 3, 0)  # the stages from the most critical to the least: S3, S2, S4, S1


@register("deepreduce", order=6)
@dataclass
class DeepReDuce(Method):
    """Culls stages and thins layers to the largest count within the budget.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
    """

    input_size: Sequence[int]
    gates: int

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the budget."""
        return cls(context.input_size, context.gates)

    def convert(self, model: nn.Module) -> nn.Module:
        """Drop the ReLUs of culled stages and thinned layers."""
        sites = find_sites(model, self.input_size)
        kept = {site.name for site in self.choose(sites)}
        return replace_sites(model, sites, lambda site: nn.ReLU() if site.name in kept else nn.Identity())

    def choose(self, sites: Sequence[Site]) -> list[Site]:
        """Return the sites that keep their ReLUs.

        Raises:
            UnsupportedModelError: The network does not have four stages.
            BudgetError: The smallest choice is above the budget.
        """
        choices = [choice for choice in _choices(stages_of(sites)) if choice]
        fitting = [choice for choice in choices if _gates(choice) <= self.gates]
        if not fitting:
            least = min(map(_gates, choices))
            raise BudgetError(
                f"culled and thinned the network has {least:,} gates or more and the budget is {self.gates:,}: "
                "give a narrower model, a larger stride of its stem or a larger budget"
            )
        return max(fitting, key=_gates)


def stages_of(sites: Sequence[Site]) -> list[tuple[Site, ...]]:
    """Return the four stages of a network: its runs of sites of equal shape."""
    stages = group_sites(sites)
    cure = "take a ResNet of the zoo or another method"
    if len(stages) != len(CRITICALITY):
        raise UnsupportedModelError(
            f"the network has {len(stages)} stages, and it is known of four which are critical: {cure}"
        )
    counts = [len(stage) for stage in stages]
    if any(count % 2 for count in counts[1:]):  # before the first block there may be a stem
        raise UnsupportedModelError(
            f"the network has {', '.join(map(str, counts))} ReLUs of equal shape, and the blocks of a stage have two "
            f"each: {cure}"
        )
    return stages


def _choices(stages: Sequence[tuple[Site, ...]]) -> Iterator[list[Site]]:
    """Iterate over numbers of the most critical stages, with all of their layers or every second one."""
    for count in range(1, len(stages) + 1):
        kept = [stages[stage] for stage in CRITICALITY[:count]]
        yield list(chain.from_iterable(kept))
        yield list(chain.from_iterable(stage[1::2] for stage in kept))


def _gates(sites: Sequence[Site]) -> int:
    return sum(site.neurons for site in sites)
