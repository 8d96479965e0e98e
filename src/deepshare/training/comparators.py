"""The methods that DeepShare is compared with, made from a recipe."""

from collections.abc import Mapping, Sequence

from torch import nn

from deepshare import methods
from deepshare.data.seeds import seed_of
from deepshare.errors import RecipeError
from deepshare.methods.base import Method
from deepshare.sharing import budget
from deepshare.sharing.sites import find_sites
from deepshare.training.recipe import Recipe

# What a dry run is spared: the distortion of every channel.
QUICK = {"spatial": {"channels": 1}}


def make_method(
    recipe: Recipe,
    base: nn.Module,
    input_size: Sequence[int],
    weights: Mapping[str, float] | None = None,
    *,
    dry: bool = False,
) -> Method:
    """Make the method of a recipe other than sharing and the plain network.

    Args:
        recipe: Its name, budget and hyperparameters.
        base: The plain network.
        input_size: Size of one input without the batch.
        weights: How the budget is divided over the sites, where the method divides it.
        dry: Whether nothing will be trained.

    Raises:
        BudgetError: The budget is no number of gates that the network has.
    """
    if recipe.budget is None:
        raise RecipeError(f"{recipe.name} has no [budget]")
    name = recipe.method.name
    gates = budget.parse(recipe.budget.gates, find_sites(base, input_size).neurons)
    settings = (
        recipe.settings | ({"weights": weights} if name == "senet" else {}) | (QUICK.get(name, {}) if dry else {})
    )
    if name in ("autorep", "senet"):
        settings["seed"] = seed_of(recipe.seed, "gates")
    return methods.get(name)(input_size=input_size, gates=gates, **settings)


def finished_form(recipe: Recipe, base: nn.Module, input_size: Sequence[int]) -> nn.Module:
    """Make a plain network into one that the weights of a finished run fit."""
    method = make_method(recipe, base, input_size)
    network = method.convert(base)
    method.form(network, "finetune")
    return network
