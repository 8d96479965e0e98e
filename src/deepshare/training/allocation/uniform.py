"""The same share of channels everywhere."""

from deepshare.sharing.sites import Sites
from deepshare.training.recipe.allocation import Allocation, Weights, register


@register("uniform", order=6)
class Uniform(Allocation):
    """No weights."""

    def read(self, sites: Sites) -> Weights:
        """Return None, the same share everywhere."""
        return None
