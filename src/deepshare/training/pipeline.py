"""Training in one call, and the pipeline behind it: check, plan, method, training, final figures.

`fit` takes a recipe to its trained network; `teach` and `allocate` do parts of it.
"""

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepshare.data.images import ImageSet, check_classes
from deepshare.data.user import UserLoader
from deepshare.errors import CheckpointError, DataError, PlanMismatchError, RecipeError
from deepshare.methods.base import Method
from deepshare.sharing.convert import count_gates
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation import Trained, leaders
from deepshare.training.build import budget_of, lay_out, make_method, make_plan, output_shape
from deepshare.training.data_source import DataSource, make_data_source
from deepshare.training.evaluate import Metrics
from deepshare.training.hardware import Hardware, launch, on_all_ranks
from deepshare.training.loop import TrainContext
from deepshare.training.recipe.files import Recipe, changed, load_recipe
from deepshare.training.reporter import Reporter, make_reporter
from deepshare.training.run.checkpoint import Kind, fill, read_weights, write_file
from deepshare.training.run.folder import RunFolder, own_lines, read_environment
from deepshare.training.shared_models import is_shared, plan_of
from deepshare.training.trainer import Networks, Role


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
) -> "Iterator[Pipeline]":
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
        told = reporter if reporter and fabric.is_global_zero else Reporter()
        if progress and reporter is None and fabric.is_global_zero:
            told = make_reporter()
            stack.callback(told.end)
        context = TrainContext(recipe, fabric, source, told, hardware.compile, dry_run)
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


@dataclass
class Pipeline:
    """All networks of one recipe, one after the other."""

    networks: Networks

    def __post_init__(self) -> None:
        self.context, self.recipe = self.networks.context, self.networks.recipe
        self.run_folder = RunFolder(self.networks.out)
        given = self.networks.given
        self.shared = given if given is not None and is_shared(given) else None

    def run(self, resume: bool) -> nn.Module:
        """Train the result of the recipe, and first the networks that it needs."""
        networks, run = self.networks, self.run_folder
        base = networks.on_all_ranks(lambda: self._checked(resume))
        plan = self._plan(base) if self.recipe.shares_gates else None
        method = self._method(base, plan)
        networks.on_all_ranks(lambda: _check_plan(run, plan))
        networks.on_all_ranks(lambda: self._convert(method, base))  # refuse before anything is trained
        networks.begin(run, plan)
        trained = networks.plain(run) if method.kind == "plain" else self._result(method, plan)
        self._finish(trained, base)
        return trained

    def teach(self, resume: bool) -> nn.Module:
        """Train no more than the teacher with GELUs, into the run folder itself."""
        base = self.networks.on_all_ranks(lambda: self._checked(resume))
        trained = self.networks.gelu(self.run_folder)
        self._finish(trained, base)
        return trained

    def allocate(self, resume: bool) -> Mapping[str, float] | None:
        """Train no more than the allocation needs, and return its weights."""
        base = self.networks.on_all_ranks(lambda: self._checked(resume))
        self.networks.on_all_ranks(lambda: self.networks.plan(base))  # refuse an impossible budget before training
        return self._weights(base)

    def _checked(self, resume: bool) -> nn.Module:
        """Build the network; check that it fits the data, and given networks and the folder fit the recipe."""
        data, networks = self.context.data, self.networks
        base = networks.base("shared", self.context.reporter.note)
        source = data.train_set
        _, outputs, *pixels = output_shape(base, networks.input_size)
        if bool(pixels) != data.segmentation:
            has, gives = ("pixel", "image") if data.segmentation else ("image", "pixel")
            raise DataError(
                f"{source.name} has a class for each {has} but {type(base).__name__} gives one for each {gives}: "
                "give other data or another network"
            )
        if not isinstance(source, ImageSet) and outputs != self.recipe.model.num_classes:
            raise RecipeError(
                f"the recipe has model.num_classes = {self.recipe.model.num_classes} but the model has {outputs} "
                "outputs: change model.num_classes"
            )
        check_classes(source.name, len(source.classes), outputs)
        self.run_folder.check(self.recipe, resume=resume, images=data.checksum)
        given: tuple[Role, ...] = ("teacher", "plain")
        for name in given:
            if networks.finished(name):
                self.context.reporter.note(f"{name}: taken from {getattr(self.recipe, name).weights}")
        return base

    def _plan(self, base: nn.Module) -> Plan:
        if self.shared is not None:
            return plan_of(self.shared, self.networks.input_size)
        self.networks.on_all_ranks(lambda: self.networks.plan(base))  # refuse an impossible budget before training
        leading = leaders.choose(self.networks, base) if budget_of(self.recipe).leader == "data" else ()
        return self.networks.plan(base, self._weights(base, leading), leading)

    def _method(self, base: nn.Module, plan: Plan | None) -> Method:
        if plan or not self.recipe.method_class.divides_budget:
            return self.networks.method(base, plan)
        self.networks.method(base).convert(base)  # refuse before the weights are trained for
        return self.networks.method(base, weights=self._weights(base))

    def _weights(self, base: nn.Module, leading: Sequence[str] = ()) -> Mapping[str, float] | None:
        allocation = budget_of(self.recipe).allocation
        if isinstance(allocation, Trained):
            return allocation.train(self.networks, base, leading)
        return allocation.read(find_sites(base, self.networks.input_size))

    def _convert(self, method: Method, base: nn.Module) -> nn.Module:
        return method.convert(base) if self.shared is None else method.adopt(self.shared)

    def _result(self, method: Method, plan: Plan | None) -> nn.Module:
        teacher = self.networks.teacher()
        network = self._convert(method, self.networks.start() if self.shared is None else self.shared)
        if self.shared is None and budget_of(self.recipe).allocation.continues_pilot:
            _continue(network, RunFolder(self.networks.out / "pilot").model)
        names = tuple(name for name in self.recipe.result_phases if name != "pilot")
        kind: Kind = "shared" if plan else "gated"
        return self.networks.train(self.run_folder, kind, network, method, names, plan=plan, teacher=teacher)

    def _finish(self, network: nn.Module, base: nn.Module) -> None:
        """Write the final figures, of the last weights and of the best."""
        run, data = self.run_folder, self.context.data
        if self.context.dry or run.result.exists() or not self.context.fabric.is_global_zero:
            return
        batch = list(self.recipe.phases.values())[-1].batch
        figures = {"last": _figures(data.test(network, batch))}
        chosen = copy.deepcopy(network)
        fill(chosen, read_weights(run.best)[0], run.best)
        figures["best"] = _figures(data.test(chosen, batch))
        result = {
            "gates": count_gates(network, self.networks.input_size),
            "neurons": find_sites(base, self.networks.input_size).neurons,
            "test": figures,
            "seconds": round(sum(line["seconds"] for line in own_lines(run)), 1),
            "date": datetime.now(UTC).date().isoformat(),
        }
        write_file(run.result, (json.dumps(result, indent=1) + "\n").encode())


def check_method(recipe: Recipe, base: nn.Module, input_size: Sequence[int]) -> None:
    """Check that a method can convert a network within its budget; nothing is trained.

    Raises:
        BudgetError: It cannot stay within the budget, or not use it.
        UnsupportedModelError: It cannot convert the network.
    """
    method = recipe.method_class
    if method.kind == "plain":
        return
    allocation, sites = budget_of(recipe).allocation, find_sites(base, input_size)
    allocation.check(sites)
    readable = method.divides_budget and not isinstance(allocation, Trained)
    weights = allocation.read(sites) if readable else None
    if recipe.shares_gates:
        make_plan(recipe, base, input_size, weights)
    else:
        make_method(recipe, base, input_size, weights=weights).convert(base)


def _figures(metrics: Metrics | None) -> dict[str, float] | None:
    return None if metrics is None else {key: value for key, value in asdict(metrics).items() if value is not None}


def _continue(network: nn.Module, pilot: Path) -> None:
    """Take over the weights of a pilot; only the mapping from channels to prototypes may have changed since."""
    pi = {key: value for key, value in network.state_dict().items() if key.endswith(".pi")}
    fill(network, {**read_weights(pilot)[0], **pi}, pilot)


def _check_plan(run: RunFolder, plan: Plan | None) -> None:
    if plan and run.plan.exists() and Plan.load(run.plan) != plan:
        raise PlanMismatchError(f"{run.plan} is another plan than the recipe's: give another folder")
