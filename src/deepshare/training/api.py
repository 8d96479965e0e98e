"""Training in one call: `fit` takes a recipe to its trained network; `teach` and `allocate` do parts of it."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepshare.data.user import UserLoader
from deepshare.errors import CheckpointError, DataError, RecipeError
from deepshare.training.build import lay_out
from deepshare.training.data_source import DataSource, make_data_source
from deepshare.training.hardware import Hardware, launch, on_all_ranks
from deepshare.training.loop import TrainContext
from deepshare.training.pipeline import Pipeline
from deepshare.training.recipe.files import Recipe, changed, load_recipe
from deepshare.training.reporter import Reporter, make_reporter
from deepshare.training.run.folder import RunFolder, read_environment
from deepshare.training.shared_models import is_shared
from deepshare.training.trainer import Networks


def fit(
    model: nn.Module | None = None,
    *,
    recipe: str | Path | Recipe | None = None,
    out: str | Path,
    data: Any = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    trained: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    hardware: Hardware | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> nn.Module:
    """Train a network by a recipe, after the teacher and the plain network that the recipe needs.

    Everything is saved in the run folder after each epoch. The teacher and the plain network have their own run folders
    inside it; `teacher.weights` and `plain.weights` of a recipe use finished ones instead.

    Args:
        model: Your own network, plain or shared, instead of the recipe's; it is not modified.
        recipe: A recipe, its name or its file; to resume, by default that of the run.
        out: Run folder.
        data: Your own data: a Dataset, or (training, validation) or (training, validation, test), each a Dataset or a
            DataLoader; or the name of a data set. By default the recipe's.
        data_dir: Folder of data sets.
        download: Download a missing data set.
        trained: The model is trained on these images already, and is the plain network as it is: the recipe starts from
            it or learns from it, and does not train it again.
        resume: Resume the run in the folder, by default with its recipe, hardware and folder of data sets; on a CPU the
            result is bit-identical to that of an uninterrupted run. A model or data of your own are given again.
        dry_run: Train one batch of every phase and write nothing.
        hardware: Devices and processes.
        progress: Show progress on stderr: bars on a terminal, elsewhere a line per epoch.
        reporter: Receives every phase and epoch instead.

    Returns:
        The trained network, on the CPU and ready for inference.

    Raises:
        RecipeError: The recipe is wrong, or its learning rate is too high.
        DataError: The data is missing, damaged or does not fit the network.
        CheckpointError: The folder holds something else, or a file in it is damaged or cannot be written.
        HardwareError: A device is missing, or there are too few of them.
    """
    if recipe is None:
        recipe = recipe_to_resume(out, resume)
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if trained:
        _check_trained(recipe, model)
    if resume:
        hardware = hardware or recorded_hardware(out)
        data_dir = data_dir or recorded(out).get("data_dir")
    given = (model, recipe, out, data, data_dir, download, dry_run, hardware, reporter, progress, trained)
    with _pipeline(*given) as pipeline:
        return lay_out(pipeline.run(resume), torch.contiguous_format).to("cpu").eval()


def teach(
    *,
    recipe: Recipe,
    out: str | Path,
    data_dir: str | Path | None = None,
    download: bool = False,
    resume: bool = False,
    hardware: Hardware | None = None,
    reporter: Reporter | None = None,
) -> nn.Module:
    """Train only the [teacher] of a recipe, the network with GELUs, for other runs to use as `teacher.weights`.

    The arguments are those of `fit`.

    Raises:
        RecipeError: The recipe has no [teacher] to train, or its learning rate is too high.
    """
    if recipe.teacher is None or recipe.teacher.weights:
        raise RecipeError(f"{recipe.name} has no network with GELUs to train: give it a [teacher] without weights")
    with _pipeline(None, recipe, out, None, data_dir, download, False, hardware, reporter) as pipeline:
        return lay_out(pipeline.teach(resume), torch.contiguous_format).to("cpu").eval()


def allocate(
    model: nn.Module | None = None,
    *,
    recipe: str | Path | Recipe,
    out: str | Path,
    data: Any = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    hardware: Hardware | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> dict[str, int]:
    """Count the gates of each site with SNL, as `fit` does if budget.allocate is "snl".

    The arguments are those of `fit`. The plain network is trained first, unless the recipe has weights for it.

    Returns:
        Gates of each site: weights for `plan`, also written to `snl/counts.json` of the run folder.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    recipe = changed(recipe, {"budget.allocate": "snl"})
    with _pipeline(model, recipe, out, data, data_dir, download, dry_run, hardware, reporter, progress) as pipeline:
        return {site: round(count) for site, count in (pipeline.allocate(resume) or {}).items()}


@contextmanager
def _pipeline(
    model: nn.Module | None,
    recipe: Recipe,
    out: str | Path,
    data: Any,
    data_dir: str | Path | None,
    download: bool,
    dry_run: bool,
    hardware: Hardware | None,
    reporter: Reporter | None,
    progress: bool = False,
    trained: bool = False,
) -> Iterator[Pipeline]:
    hardware = hardware or Hardware()
    fabric = hardware.fabric()
    _check_batches(recipe, hardware.processes)
    launch(fabric)
    if isinstance(data, str):  # the run folder records the images of its training
        recipe, data = changed(recipe, {"data.name": data}), None
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if hardware.deterministic:
            stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True)
        if dry_run:
            out = fabric.broadcast(stack.enter_context(tempfile.TemporaryDirectory()))
        source = on_all_ranks(fabric, lambda: _source(data, recipe, data_dir, download, fabric.world_size))
        shown = reporter if reporter and fabric.is_global_zero else Reporter()
        if progress and reporter is None and fabric.is_global_zero:
            shown = make_reporter()
            stack.callback(shown.end)
        context = TrainContext(recipe, fabric, source, shown, hardware.compile, dry_run)
        where = None if data_dir is None else str(Path(data_dir).expanduser().absolute())
        environment = {**asdict(hardware), "data_dir": where, "trained": trained}
        yield Pipeline(Networks(context, Path(out), model, environment, trained))


def recipe_to_resume(out: str | Path, resume: bool) -> Path:
    """The recipe of the run in a folder.

    Raises:
        RecipeError: Nothing is resumed.
        CheckpointError: There is no run.
    """
    if not resume:
        raise RecipeError("give a recipe (deepshare recipes lists them), or resume a run")
    recipe = RunFolder(Path(out)).recipe
    if not recipe.is_file():
        raise CheckpointError(f"there is no run in {out} to resume: begin one")
    return recipe


def recorded(out: str | Path) -> Mapping[str, Any]:
    """The environment that a run was begun in; nothing if there is none."""
    run = RunFolder(Path(out))
    return read_environment(run) if run.environment.exists() else {}


def recorded_hardware(out: str | Path) -> Hardware:
    """The hardware that a run was begun with."""
    known = {field.name for field in fields(Hardware)}
    return Hardware(**{key: value for key, value in recorded(out).items() if key in known})


def _check_trained(recipe: Recipe, model: nn.Module | None) -> None:
    """Refuse to take a network as the trained plain one.

    Raises:
        RecipeError: There is none, or it is shared, or the recipe has another plain network or nothing else to train.
    """
    if model is None:
        raise RecipeError("trained=True is about your own network: give it as model")
    if is_shared(model):
        raise RecipeError("trained=True is about the plain network, and this one is shared: give the plain one")
    if recipe.is_plain:
        raise RecipeError(f"{recipe.name} trains the plain network alone, and yours is trained: give another recipe")
    if recipe.model_of("plain") != recipe.model:
        raise RecipeError(f"the plain network of {recipe.name} is another than the model: leave out plain.model")
    if recipe.plain is not None and recipe.plain.weights:
        raise RecipeError(f"{recipe.name} has plain.weights, and your network is trained: leave out one of the two")


def _source(data: Any, recipe: Recipe, data_dir: str | Path | None, download: bool, processes: int) -> DataSource:
    source = make_data_source(data, recipe, data_dir, download=download)
    source.check()
    if processes > 1 and isinstance(source.train_set, UserLoader):
        raise DataError("a DataLoader cannot be shared out to several processes: give its Dataset")
    return source


def _check_batches(recipe: Recipe, processes: int) -> None:
    extra = recipe.budget.allocation.phases(recipe) if recipe.budget else {}
    for name, phase in {**recipe.phases, **extra}.items():
        if phase.batch % processes:
            raise RecipeError(f"{name}.batch = {phase.batch} cannot be shared by {processes} processes: change it")
