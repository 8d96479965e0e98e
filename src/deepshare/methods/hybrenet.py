"""HybReNet: networks with more ReLUs in more critical stages, culled and thinned.

Its networks are in the zoo, such as hrn-5x5x3. ReLUs are dropped as in DeepReDuce.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from deepshare.errors import UnsupportedModelError
from deepshare.methods.base import register
from deepshare.methods.deepreduce import DeepReDuce, stages_of
from deepshare.sharing.sites import Site


@register("hybrenet", order=8)
@dataclass
class HybReNet(DeepReDuce):
    """Culls and thins a network that was designed for it."""

    def choose(self, sites: Sequence[Site]) -> list[Site]:
        """Return the sites that keep their ReLUs.

        Raises:
            UnsupportedModelError: The network is an ordinary ResNet.
            BudgetError: The smallest choice is above the budget.
        """
        widths = [stage[0].channels for stage in stages_of(sites)]
        if all(after == 2 * before for before, after in pairwise(widths)):
            raise UnsupportedModelError(
                f"stages of {', '.join(map(str, widths))} channels are those of a ResNet: "
                "take a network such as hrn-5x5x3, or the method deepreduce"
            )
        return super().choose(sites)
