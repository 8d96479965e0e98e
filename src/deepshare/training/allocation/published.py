"""Densities that methods found for the networks of their papers, shipped with the package."""

import tomllib
from importlib import resources
from typing import ClassVar

from deepshare.errors import BudgetError
from deepshare.sharing.sites import Sites
from deepshare.training.recipe.allocation import Allocation, register


class Published(Allocation):
    """The shipped densities of a method.

    Attributes:
        title: The method's name in messages.
        key: Its table in densities.toml.
    """

    title: ClassVar[str]
    key: ClassVar[str]

    def read(self, sites: Sites) -> dict[str, float]:
        """Return the density times the neurons for every site of a network, of any width and image size.

        Raises:
            BudgetError: Its densities are not known for the network.
        """
        text = (resources.files("deepshare.training.allocation") / "densities.toml").read_text(encoding="utf-8")
        networks = tomllib.loads(text).get(self.key, {})
        names = [site.name for site in sites]
        for densities in networks.values():
            if names == list(densities):
                return {site.name: densities[site.name] * site.neurons for site in sites}
        known = f"the sites of {' and '.join(networks)} only" if networks else "no network yet"
        raise BudgetError(
            f"{self.title}'s densities are known for {known}: allocate by pruning, which measures them, by uniform, by "
            "snl or by a file of counts"
        )


@register("senet", order=1)
class SENetDensities(Published):
    """The densities of SENet."""

    title: ClassVar = "SENet"
    key: ClassVar = "senet"


@register("snl-densities", order=2)
class SNLDensities(Published):
    """The densities that SNL leaves."""

    title: ClassVar = "SNL"
    key: ClassVar = "snl"
