"""How many gates each site wants, by SNL: trained like anything else, in a run folder of its own."""

import copy
import json
from collections.abc import Sequence

from torch import nn

from deepshare.methods.snl import SNL
from deepshare.sharing import budget
from deepshare.sharing.sites import find_sites
from deepshare.training.loop import Setting
from deepshare.training.recipe.files import Phase, Recipe
from deepshare.training.run.folder import RunFolder
from deepshare.training.run.weights import Label, fill, read_weights, write_file
from deepshare.training.trainer import Training


def find_counts(setting: Setting, plain: nn.Module, input_size: Sequence[int], run: RunFolder) -> dict[str, int]:
    """Run SNL on a trained plain network, with that network as its teacher; a finished run is read, not repeated.

    Args:
        setting: What it is trained with.
        plain: The trained network; it is not touched.
        input_size: Size of one input without the batch.
        run: Where it is saved; it must have been begun.

    Returns:
        The ReLUs that are left at each site, which the run folder also holds as `counts.json`.

    Raises:
        RecipeError: The loss is no longer a number.
        CheckpointError: What was saved is damaged or of another network, or a file cannot be written.
    """
    neurons = find_sites(plain, input_size).neurons
    method = snl_method(setting.recipe, input_size, neurons)
    network = method.convert(plain)
    if run.model.exists():
        setting.reporter.note(f"snl: taken from {run.model}")
        fill(network, read_weights(run.model)[0], run.model)
    else:
        label = Label("masked", tuple(input_size))
        teacher = copy.deepcopy(plain)
        Training(setting, network, method, {"snl": snl_phase(setting.recipe)}, run, label, teacher).run()
    counts = method.counts(network)
    left = sum(counts.values())
    if left > method.gates and not setting.dry:
        setting.reporter.note(
            f"snl: ended with {left:,} gates, above the {method.gates:,} that it was to reach, and its counts are "
            "taken as they are; a new folder with more snl.max_epochs or a larger snl.lasso gets further"
        )
    if setting.fabric.is_global_zero:
        write_file(run.path / "counts.json", (json.dumps(counts, indent=1) + "\n").encode())
    return counts


def snl_method(recipe: Recipe, input_size: Sequence[int], neurons: int) -> SNL:
    """Make the method with a recipe's settings; it stops at its own count of gates or else at the budget's."""
    settings = recipe.snl
    gates = settings.gates or (recipe.budget.gates if recipe.budget else neurons)
    return SNL(input_size, budget.parse(gates, neurons), **settings.of_method)


def snl_phase(recipe: Recipe) -> Phase:
    """Make the phase."""
    return Phase(
        epochs=recipe.snl.max_epochs,
        batch=recipe.snl.batch,
        lr=recipe.snl.lr,
        schedule="none",
        optimiser="adam",
        weight_decay=0.0,
        distill=recipe.distillation.weight,
    )
