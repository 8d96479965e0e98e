"""Methods made from a recipe: the plan of those that share gates, and those that DeepShare is compared with."""

from collections.abc import Mapping, Sequence

from torch import nn

from deepshare import methods
from deepshare.data.seeds import seed_of
from deepshare.errors import RecipeError
from deepshare.methods.base import Method
from deepshare.methods.senet_pruning import check_layers
from deepshare.sharing import budget
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation.published import divide, weights
from deepshare.training.recipe.files import Recipe
from deepshare.training.recipe.schema import DIVIDING, SHARING, Budget
from deepshare.training.recipe.sections import PILOTED

# What a dry run is spared: the distortion of every channel.
QUICK = {"spatial": {"channels": 1}}


def make_method(
    recipe: Recipe,
    base: nn.Module,
    input_size: Sequence[int],
    shares: Mapping[str, float] | None = None,
    *,
    dry: bool = False,
) -> Method:
    """Make the method of a recipe other than sharing and the plain network.

    Args:
        recipe: Its name, budget and hyperparameters.
        base: The plain network.
        input_size: Size of one input without the batch.
        shares: How the budget is divided over the sites, where the method divides it.
        dry: Whether nothing will be trained.

    Raises:
        BudgetError: The budget is no number of gates that the network has.
    """
    name = recipe.method.name
    gates = budget.parse(budget_of(recipe).gates, find_sites(base, input_size).neurons)
    settings = recipe.settings | ({"weights": shares} if name == "senet" else {}) | (QUICK.get(name, {}) if dry else {})
    if name in ("autorep", "senet"):
        settings["seed"] = seed_of(recipe.seed, "gates")
    return methods.get(name)(input_size=input_size, gates=gates, **settings)


def planned(
    recipe: Recipe,
    base: nn.Module,
    input_size: Sequence[int],
    shares: Mapping[str, float] | None = None,
    leaders: Sequence[str] = (),
) -> Plan:
    """Make the plan of a recipe whose method shares gates.

    Args:
        recipe: Its budget and options.
        base: The plain network.
        input_size: Size of one input without the batch.
        shares: How the budget is divided over the sites; the same share of channels everywhere without.
        leaders: Sites that lead their groups.

    Raises:
        BudgetError: The budget cannot be met.
    """
    limits, method = budget_of(recipe), recipe.method
    options = {**limits.of_plan, "mapping": method.mapping, "affine": method.affine, "leaders": leaders}
    return divide(base, input_size, limits.gates, shares, **options)


def check_method(recipe: Recipe, base: nn.Module, input_size: Sequence[int]) -> None:
    """See whether a method can do its network and its budget at all; nothing is trained.

    Raises:
        BudgetError: It cannot stay within the budget, or not use it.
        UnsupportedModelError: It cannot convert the network.
    """
    name = recipe.method.name
    if name == "relu":
        return
    allocate = budget_of(recipe).allocate
    sites = find_sites(base, input_size)
    if allocate == "pruning":
        check_layers(sites)
    known = name in DIVIDING and allocate not in ("snl", *PILOTED)  # without training
    shares = weights(allocate, sites) if known else None
    if name in SHARING:
        planned(recipe, base, input_size, shares)
    else:
        make_method(recipe, base, input_size, shares).convert(base)


def budget_of(recipe: Recipe) -> Budget:
    """The budget of a recipe whose method has one.

    Raises:
        RecipeError: It says none.
    """
    if recipe.budget is None:
        raise RecipeError(f"{recipe.name} has no [budget]")
    return recipe.budget


def finished_form(recipe: Recipe, base: nn.Module, input_size: Sequence[int]) -> nn.Module:
    """Make a plain network into one that the weights of a finished run fit."""
    method = make_method(recipe, base, input_size)
    network = method.convert(base)
    method.form(network, "finetune")
    return network
