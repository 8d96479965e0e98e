"""SENet's sensitivities, measured by a pilot: a copy of the plain network that is trained sparse."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from deepshare.methods import base as methods
from deepshare.methods.base import RecipeView
from deepshare.methods.senet_pruning import Sparse, check_layers, relu_sensitivities
from deepshare.sharing.sites import Sites, find_sites
from deepshare.training.allocation import Trained
from deepshare.training.allocation.files import measured_once
from deepshare.training.recipe.allocation import register
from deepshare.training.run.folder import RunFolder

if TYPE_CHECKING:
    from deepshare.training.trainer import Networks


@register("pruning", order=4)
class Pruning(Trained):
    """The sparsity that layers reach."""

    needs_pilot: ClassVar = True

    def problem(self, recipe: RecipeView) -> str | None:
        """It needs a method that divides its budget, and a pilot."""
        if not recipe.method_class.divides_budget:
            dividing = ", ".join(methods.names(lambda method: method.divides_budget))
            return f'budget.allocate = "pruning" is for methods that divide their budget: {dividing}'
        if "pilot" not in recipe.result_phases:
            return 'budget.allocate = "pruning" is measured on a copy that is trained sparse: it needs [pilot]'
        return None

    def check(self, sites: Sites) -> None:
        """Refuse a network without a site that activates the output of a layer."""
        check_layers(sites)

    def train(self, networks: "Networks", base: nn.Module, leaders: Sequence[str]) -> dict[str, float]:
        """Train the pilot, and weight each site by the sparsity of the layers before it.

        Raises:
            BudgetError: No site activates the output of a layer.
        """
        sites = find_sites(base, networks.input_size)
        networks.on_all_ranks(lambda: check_layers(sites))
        networks.begin(RunFolder(networks.out))
        fabric, run = networks.context.fabric, RunFolder(networks.out / "pilot")
        pilot = networks.train(run, "plain", networks.start(), Sparse(), ("pilot",), teacher=networks.teacher())
        return measured_once(fabric, run.path / "weights.json", lambda: relu_sensitivities(pilot, sites))
