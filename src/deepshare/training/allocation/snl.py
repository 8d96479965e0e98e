"""Counts of gates by SNL, which is trained like any other method, in a run folder of its own."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from deepshare.methods.base import RecipeView
from deepshare.methods.snl import SNL, SNLSettings
from deepshare.sharing.planning import parse_budget
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation import Trained
from deepshare.training.recipe.allocation import register
from deepshare.training.recipe.schema import Distillation, Phase, Recipe
from deepshare.training.run.checkpoint import WeightsHeader, fill, read_weights, write_file
from deepshare.training.run.folder import RunFolder

if TYPE_CHECKING:
    from deepshare.training.loop import TrainContext
    from deepshare.training.trainer import Networks


@register("snl", order=3)
class CountedBySNL(Trained):
    """The gates that SNL leaves."""

    needs_plain: ClassVar = True

    def phases(self, recipe: RecipeView) -> Mapping[str, Phase]:
        """SNL has a phase of its own."""
        return {"snl": snl_phase(recipe)}

    def train(self, networks: "Networks", base: nn.Module, leaders: Sequence[str]) -> dict[str, float]:
        """Train the plain network, and count the gates that SNL leaves at each of its sites."""
        networks.begin(RunFolder(networks.out))
        plain = networks.plain()
        run = RunFolder(networks.out / "snl")
        networks.begin(run)
        left_at = find_counts(networks.context, plain, networks.input_size, run)
        return {name: float(count) for name, count in left_at.items()}


def find_counts(context: "TrainContext", plain: nn.Module, input_size: Sequence[int], run: RunFolder) -> dict[str, int]:
    """Run SNL on a trained plain network, with that network as its teacher, unless the run is finished.

    Args:
        context: Recipe, data and devices.
        plain: Trained network; it is not modified.
        input_size: Size of one input without the batch.
        run: Run folder, which must exist.

    Returns:
        Remaining ReLUs of each site, also written to `counts.json` of the run folder.

    Raises:
        RecipeError: The loss became NaN or infinite.
        CheckpointError: A saved file is damaged or of another network, or a file cannot be written.
    """
    from deepshare.training.trainer import Trainer

    neurons = find_sites(plain, input_size).neurons
    method = snl_method(context.recipe, input_size, neurons)
    network = method.convert(plain)
    if run.model.exists():
        context.reporter.note(f"snl: taken from {run.model}")
        fill(network, read_weights(run.model)[0], run.model)
    else:
        header = WeightsHeader("masked", tuple(input_size))
        teacher = copy.deepcopy(plain)
        Trainer(context, network, method, {"snl": snl_phase(context.recipe)}, run, header, teacher).run()
    left_at = method.counts(network)
    left = sum(left_at.values())
    if left > method.gates and not context.dry:
        context.reporter.note(
            f"snl: ended with {left:,} gates, above the {method.gates:,} that it was to reach, and its counts are "
            "taken as they are; a new folder with more snl.max_epochs or a larger snl.lasso gets further"
        )
    if context.fabric.is_global_zero:
        write_file(run.path / "counts.json", (json.dumps(left_at, indent=1) + "\n").encode())
    return left_at


def snl_method(recipe: Recipe, input_size: Sequence[int], neurons: int) -> SNL:
    """Make the method of a recipe; it ends at `snl.gates`, or else at the budget."""
    settings = recipe.section(SNLSettings)
    gates = settings.gates or (recipe.budget.gates if recipe.budget else neurons)
    return SNL(input_size, parse_budget(gates, neurons), **settings.of_method)


def snl_phase(recipe: RecipeView) -> Phase:
    """Make the phase."""
    settings = recipe.section(SNLSettings)
    return Phase(
        epochs=settings.max_epochs,
        batch=settings.batch,
        lr=settings.lr,
        schedule="none",
        optimiser="adam",
        weight_decay=0.0,
        distill=recipe.section(Distillation).weight,
    )
