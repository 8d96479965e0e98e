"""Densities that methods found for the networks of their papers, shipped with the package."""

import tomllib
from collections.abc import Sequence
from importlib import resources

from deepshare.errors import BudgetError
from deepshare.sharing.sites import Site
from deepshare.training.recipe.schema import DENSITIES


def weights(allocate: str, sites: Sequence[Site]) -> dict[str, float]:
    """Return the density times the neurons for every site of a network, of any width and image size.

    Raises:
        BudgetError: Its densities are not known for the network.
    """
    title, key = DENSITIES[allocate]
    text = (resources.files("deepshare.training.allocation") / "densities.toml").read_text(encoding="utf-8")
    networks = tomllib.loads(text).get(key, {})
    names = [site.name for site in sites]
    for densities in networks.values():
        if names == list(densities):
            return {site.name: densities[site.name] * site.neurons for site in sites}
    known = f"the sites of {' and '.join(networks)} only" if networks else "no network yet"
    raise BudgetError(
        f"{title}'s densities are known for {known}: allocate by pruning, which measures them, by uniform, by snl or "
        "by a file of counts"
    )
