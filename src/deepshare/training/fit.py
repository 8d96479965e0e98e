"""From nothing to a trained network in one call: teachers, GELU phase, switch, finetune."""

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepshare.data import UserLoader, check_classes
from deepshare.data.seeds import seed_of
from deepshare.errors import CheckpointError, DataError, PlanMismatchError, RecipeError, UnsupportedModelError
from deepshare.methods.base import Method
from deepshare.methods.deepshare import DeepShare
from deepshare.sharing.plan import Plan, plan
from deepshare.sharing.sites import find_sites
from deepshare.training.allocate import of_first_sites, weights
from deepshare.training.evaluate import Result
from deepshare.training.feed import make_feed
from deepshare.training.folder import RunFolder, describe_environment
from deepshare.training.given import is_shared, plan_of, unshared
from deepshare.training.hardware import Hardware
from deepshare.training.loop import Setting
from deepshare.training.networks import gelu_network, lay_out, plain_network
from deepshare.training.phases import Training
from deepshare.training.progress import Reporter
from deepshare.training.recipe import Phase, Recipe, changed, load_recipe
from deepshare.training.schema import Budget
from deepshare.training.snl import find_counts
from deepshare.training.weights import Kind, Label, fill, plan_checksum, read_weights, write_file


def fit(
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
    reporter: Reporter | None = None,
) -> nn.Module:
    """Train a network as a recipe says, with all that it needs: its teacher, and the plain network where it starts.

    Everything is saved in the run folder after each epoch; the teacher and the plain network have run folders of their
    own inside it, and `teacher.weights` or `plain.weights` in a recipe take finished ones instead.

    Args:
        model: A network of your own, plain or shared, which the recipe's takes the place of; it is not touched.
        recipe: A recipe, or its name or file.
        out: The run folder.
        data: Your own data: a Dataset, or (training, validation) or (training, validation, test), each a Dataset or a
            DataLoader; or the name of a data set. By default the recipe's.
        data_dir: Where data sets are.
        download: Whether to fetch a data set that is not there.
        resume: Whether to go on with the run in the folder; it ends bit for bit as if it had not been interrupted.
        dry_run: Whether to train only one batch of every phase, and to keep nothing.
        hardware: Where it runs.
        reporter: Who is told; by default nobody.

    Returns:
        The trained network, on the CPU and ready for inference.

    Raises:
        RecipeError: The recipe is wrong, or its learning rate too high.
        DataError: The data is missing, damaged or does not fit the network.
        CheckpointError: The folder holds something else, or a file in it is damaged or cannot be written.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with _fitting(model, recipe, out, data, data_dir, download, dry_run, hardware, reporter) as fitting:
        return lay_out(fitting.run(resume), torch.contiguous_format).to("cpu").eval()


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
    reporter: Reporter | None = None,
) -> dict[str, int]:
    """Find by SNL how many gates each site of a network wants, as `fit` does where budget.allocate is "snl".

    The arguments are those of `fit`. The plain network is trained first, unless the recipe has weights for it.

    Returns:
        A count for each site: weights for `plan`, which the run folder also holds as `snl/counts.json`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    recipe = changed(recipe, {"budget.allocate": "snl"})
    with _fitting(model, recipe, out, data, data_dir, download, dry_run, hardware, reporter) as fitting:
        return fitting.allocate(resume)


@contextmanager
def _fitting(
    model: nn.Module | None,
    recipe: Recipe,
    out: str | Path,
    data: Any,
    data_dir: str | Path | None,
    download: bool,
    dry_run: bool,
    hardware: Hardware | None,
    reporter: Reporter | None,
) -> "Iterator[_Fitting]":
    hardware = hardware or Hardware()
    fabric = hardware.launch()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if hardware.deterministic:
            stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True)
        if dry_run:
            out = fabric.broadcast(stack.enter_context(tempfile.TemporaryDirectory()))
        _check_batches(recipe, fabric.world_size)
        feed = make_feed(data, recipe, data_dir, download=download)
        if fabric.world_size > 1 and isinstance(feed.train_set, UserLoader):
            raise DataError("a DataLoader cannot be shared out to several processes: give its Dataset")
        told = reporter if reporter and fabric.is_global_zero else Reporter()
        setting = Setting(recipe, fabric, feed, told, hardware.compile, dry_run)
        yield _Fitting(setting, Path(out), model, asdict(hardware))


@dataclass
class _Fitting:
    """All networks of one recipe."""

    setting: Setting
    out: Path
    given: nn.Module | None
    hardware: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.recipe = self.setting.recipe
        self.input_size = self.setting.feed.input_size

    def run(self, resume: bool) -> nn.Module:
        run = RunFolder(self.out)
        base = self._checked(run, resume)
        planned = self._plan(base) if self.recipe.method.name == "deepshare" else None
        _check_plan(run, planned)
        self._begin(run, planned)
        trained = self._plain(run) if planned is None else self._shared(run, planned)
        self._finish(run, trained, planned)
        return trained

    def allocate(self, resume: bool) -> dict[str, int]:
        base = self._checked(RunFolder(self.out), resume)
        self._planned(base, None)  # a budget that cannot be met is refused before anything is trained
        return self._snl()

    def _checked(self, run: RunFolder, resume: bool) -> nn.Module:
        """The network, once it is known to fit the data and the folder."""
        base = self._base("shared")
        source = self.setting.feed.train_set
        check_classes(source.name, len(source.classes), _outputs(base, self.input_size))
        run.check(self.recipe, resume=resume)
        return base

    def _base(self, role: str) -> nn.Module:
        """The plain network before training."""
        if self.given is None:
            return plain_network(self.recipe, role)
        return unshared(self.given)

    def _plan(self, base: nn.Module) -> Plan:
        if self.given is not None and is_shared(self.given):
            return plan_of(self.given, self.input_size)
        budget = self._budget()
        if budget.allocate == "snl":
            self._planned(base, None)  # a budget that cannot be met is refused before anything is trained
            return self._planned(base, self._snl())
        return self._planned(base, weights(budget.allocate, find_sites(base, self.input_size)))

    def _planned(self, base: nn.Module, shares: Mapping[str, float] | None) -> Plan:
        budget = self._budget()
        if shares and budget.first_site_only:
            shares = of_first_sites(shares, find_sites(base, self.input_size), max_group=budget.max_group)
        return plan(
            base,
            self.input_size,
            budget.gates,
            shares,
            layer_sharing=budget.layer_sharing,
            max_group=budget.max_group,
            mapping=self.recipe.method.mapping,
            affine=self.recipe.method.affine,
        )

    def _budget(self) -> Budget:
        if self.recipe.budget is None:
            raise RecipeError(f"{self.recipe.name} has no [budget]")
        return self.recipe.budget

    def _snl(self) -> dict[str, int]:
        """The count of gates that each site of the trained plain network wants."""
        self._begin(RunFolder(self.out), None)
        plain = self._plain(RunFolder(self.out / "plain"))
        run = RunFolder(self.out / "snl")
        self._begin(run, None)
        return find_counts(self.setting, plain, self.input_size, run)

    def _plain(self, run: RunFolder) -> nn.Module:
        if self.recipe.plain is None:  # then its weights were given
            return self._base("plain")
        teacher = self._teacher() if self._phase("plain").distill else None
        return self._train(run, "plain", self._base("plain"), Method(), ("plain",), teacher=teacher)

    def _teacher(self) -> nn.Module:
        network = gelu_network(self._base("teacher"), self.input_size)
        return self._train(RunFolder(self.out / "teacher"), "gelu", network, Method(), ("teacher",))

    def _shared(self, run: RunFolder, planned: Plan) -> nn.Module:
        settings = self.recipe.method
        seed = seed_of(self.recipe.seed, "alpha and beta")
        method = DeepShare(planned, settings.start, settings.sharpness, seed, settings.replicates)
        teacher = self._teacher() if self.recipe.needs_teacher else None
        if self.given is not None and is_shared(self.given):
            network = copy.deepcopy(self.given)
        else:
            from_plain = settings.initial == "plain"
            start = self._plain(RunFolder(self.out / "plain")) if from_plain else self._base("shared")
            network = method.convert(start)
        names = tuple(name for name in ("gelu", "switch", "finetune") if getattr(self.recipe, name))
        return self._train(run, "shared", network, method, names, planned=planned, teacher=teacher)

    def _train(
        self,
        run: RunFolder,
        kind: Kind,
        network: nn.Module,
        method: Method,
        names: tuple[str, ...],
        *,
        planned: Plan | None = None,
        teacher: nn.Module | None = None,
    ) -> nn.Module:
        """Train a network, or take it if a finished one is there."""
        finished = getattr(getattr(self.recipe, names[0]), "weights", None)
        if finished is not None or run.model.exists():
            path = run.model if finished is None else _weights_file(Path(finished))
            self.setting.reporter.note(f"{names[0]}: taken from {path}")
            return _filled(network, path, kind, planned)
        self._begin(run, planned)
        label = Label(kind, self.input_size, plan_checksum(planned), own=self.given is not None)
        phases = {name: self._phase(name) for name in names}
        return Training(self.setting, network, method, phases, run, label, teacher).run()

    def _phase(self, name: str) -> Phase:
        phase: Phase = getattr(self.recipe, name)
        return phase.model_copy(update={"distill": self.recipe.distill_weight(name)})

    def _begin(self, run: RunFolder, planned: Plan | None) -> None:
        if self.setting.fabric.is_global_zero:
            run.begin(self.recipe, describe_environment(self.recipe.seed, self.hardware), planned)
        self.setting.fabric.barrier()

    def _finish(self, run: RunFolder, network: nn.Module, planned: Plan | None) -> None:
        """Write the final figures, of the last weights and of the best."""
        if self.setting.dry or run.result.exists() or not self.setting.fabric.is_global_zero:
            return
        batch = self._phase("plain" if planned is None else "finetune").batch
        figures = {"last": _figures(self.setting.feed.test(network, batch))}
        chosen = copy.deepcopy(network)
        fill(chosen, read_weights(run.best)[0], run.best)
        figures["best"] = _figures(self.setting.feed.test(chosen, batch))
        gates = planned.gates if planned else find_sites(network, self.input_size).neurons
        lines = run.lines()
        result = {"gates": gates, "test": figures, "seconds": round(sum(line["seconds"] for line in lines), 1)}
        write_file(run.result, (json.dumps(result, indent=1) + "\n").encode())


def _figures(result: Result | None) -> dict[str, float] | None:
    return None if result is None else {key: value for key, value in asdict(result).items() if value is not None}


def _filled(network: nn.Module, path: Path, kind: Kind, planned: Plan | None) -> nn.Module:
    tensors, label = read_weights(path)
    if label.network != kind or label.plan != plan_checksum(planned):
        raise CheckpointError(f"{path} is a {label.network} network where a {kind} one is due: give another")
    fill(network, tensors, path)
    return network


def _weights_file(path: Path) -> Path:
    return RunFolder(path).model if path.is_dir() else path


def _check_batches(recipe: Recipe, processes: int) -> None:
    batches = {name: phase.batch for name, phase in recipe.phases.items()}
    if recipe.budget and recipe.budget.allocate == "snl":
        batches["snl"] = recipe.snl.batch
    for name, batch in batches.items():
        if batch % processes:
            raise RecipeError(f"{name}.batch = {batch} cannot be shared by {processes} processes: change it")


def _check_plan(run: RunFolder, planned: Plan | None) -> None:
    if planned and run.plan.exists() and Plan.load(run.plan) != planned:
        raise PlanMismatchError(f"{run.plan} is another plan than the recipe's: give another folder")


def _outputs(model: nn.Module, input_size: tuple[int, ...]) -> int:
    with torch.no_grad():
        output = copy.deepcopy(model).to("meta").eval()(torch.zeros(1, *input_size, device="meta"))
    if not isinstance(output, torch.Tensor):
        kind = type(output).__name__
        raise UnsupportedModelError(f"{type(model).__name__} returns a {kind}: wrap it so that it returns logits")
    return int(output.shape[1])
