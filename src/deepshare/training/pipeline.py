"""The pipeline behind training: check, plan, method, training, final figures."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from deepshare.data.images import ImageSet, check_classes
from deepshare.errors import DataError, PlanMismatchError, RecipeError
from deepshare.methods.base import Method
from deepshare.sharing.convert import count_gates
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation import Trained, leaders
from deepshare.training.batchnorm import batch_norms
from deepshare.training.build import budget_of, make_method, make_plan, output_shape
from deepshare.training.evaluate import Metrics
from deepshare.training.recipe.files import Recipe
from deepshare.training.run.checkpoint import Kind, fill, read_weights, write_file
from deepshare.training.run.folder import RunFolder, best_line, own_lines
from deepshare.training.shared_models import is_shared, plan_of
from deepshare.training.trainer import Networks, Prerequisite
from deepshare.zoo.names import arguments_of


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
        arguments = arguments_of(self.recipe.model.name)
        fixed = bool(arguments) and "num_classes" not in arguments  # model.num_classes does not reach the network
        if (fixed or not isinstance(source, ImageSet)) and outputs != self.recipe.model.num_classes:
            raise RecipeError(
                f"the recipe has model.num_classes = {self.recipe.model.num_classes} but the model has {outputs} "
                f"outputs: {_other_outputs(arguments) if fixed else 'change model.num_classes'}"
            )
        check_classes(source.name, len(source.classes), outputs)
        anew = [name for name, phase in self.recipe.phases.items() if phase.recalibrate]
        if anew and not batch_norms(base):
            raise RecipeError(f"{type(base).__name__} has no BatchNorm: take {anew[0]}.recalibrate away")
        self.run_folder.check(self.recipe, resume=resume, images=data.checksum)
        given: tuple[Prerequisite, ...] = ("teacher", "plain")
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
        lines = run.lines()
        result = {
            "best_epoch": best_line(lines, "val_miou" if "val_miou" in lines[-1] else "val_accuracy")["epoch"],
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


def _other_outputs(arguments: Sequence[str]) -> str:
    return (
        "its factory has no argument num_classes, so change model.num_classes, or the outputs by an argument that it "
        f"has: --model.arguments.NAME ({', '.join(arguments)})"
    )
