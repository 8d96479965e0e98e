"""HybReNet: networks whose stages have the more ReLUs the more critical they are, then culled and thinned.

Its networks are in the zoo, as hrn-5x5x3 and its like; what is dropped follows DeepReDuce.
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
    """Culling and thinning of a network that was designed for it."""

    def choose(self, sites: Sequence[Site]) -> list[Site]:
        """The sites that keep their ReLU.

        Raises:
            UnsupportedModelError: It is none of its networks.
            BudgetError: Even the least choice is above the budget.
        """
        widths = [stage[0].channels for stage in stages_of(sites)]
        if all(after == 2 * before for before, after in pairwise(widths)):
            raise UnsupportedModelError(
                f"stages of {', '.join(map(str, widths))} channels are those of a ResNet: "
                "take a network such as hrn-5x5x3, or the method deepreduce"
            )
        return super().choose(sites)
