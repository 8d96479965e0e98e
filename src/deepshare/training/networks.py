"""The networks of a recipe beside its result, and their training: each is trained once, or read from its run folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from deepshare.data import ImageSet
from deepshare.data.about import About
from deepshare.errors import CheckpointError
from deepshare.methods.base import Method
from deepshare.sharing.plan import Plan
from deepshare.training.build import convert, gelu_network, make_method, make_plan, plain_network
from deepshare.training.hardware import on_all_ranks
from deepshare.training.loop import TrainContext
from deepshare.training.recipe.files import Phase
from deepshare.training.run.checkpoint import Kind, WeightsHeader, fill, plan_checksum, read_weights
from deepshare.training.run.folder import RunFolder, describe_environment
from deepshare.training.shared_models import unshared
from deepshare.training.trainer import Trainer

T = TypeVar("T")
Role = Literal["teacher", "plain"]


@dataclass
class Networks:
    """The networks of one recipe.

    Attributes:
        context: Recipe, data and devices.
        out: The run folder; each network but the result has one of its own inside it.
        given: The user's own network in the place of the recipe's.
        hardware: Is recorded in every run folder.
    """

    context: TrainContext
    out: Path
    given: nn.Module | None
    hardware: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.recipe = self.context.recipe
        self.input_size = self.context.data.input_size

    def on_all_ranks(self, check: Callable[[], T]) -> T:
        """Run a check in every process before any continues."""
        return on_all_ranks(self.context.fabric, check)

    def base(self, role: str, tell: Callable[[str], None] | None = None) -> nn.Module:
        """The plain network of a role before training."""
        if self.given is None or self.recipe.model_of(role) != self.recipe.model:
            return plain_network(self.recipe, role, tell)
        return unshared(self.given)

    def start(self) -> nn.Module:
        """The plain network that the result is made from, trained or not."""
        return self.plain() if self.recipe.starts_from_plain else self.base("shared")

    def plain(self, run: RunFolder | None = None) -> nn.Module:
        """The trained plain network, into its own run folder or into another."""
        if self.recipe.plain is None:  # then its weights were given
            return self.base("plain")
        if finished := self.finished("plain"):
            return finished
        teacher = self.gelu() if self._phase("plain").distill else None
        run = run or RunFolder(self.out / "plain")
        return self.train(run, "plain", self.base("plain"), Method(), ("plain",), teacher=teacher)

    def gelu(self, run: RunFolder | None = None) -> nn.Module:
        """The trained network with GELUs, into its own run folder or into another."""
        if finished := self.finished("teacher"):
            return finished
        network = gelu_network(self.base("teacher"), self.input_size)
        return self.train(run or RunFolder(self.out / "teacher"), "gelu", network, Method(), ("teacher",))

    def teacher(self) -> nn.Module | None:
        """The trained network that the result learns from, if there is one."""
        if self.recipe.distillation.teacher == "plain":
            return self.plain() if self.recipe.needs_plain else None
        return self.gelu() if self.recipe.needs_teacher else None

    def finished(self, name: Role) -> nn.Module | None:
        """The trained network that the recipe gives in the place of one to be trained."""
        path = getattr(self.recipe.phases.get(name), "weights", None)
        if path is None:
            return None
        kind: Kind = "gelu" if name == "teacher" else "plain"
        file = RunFolder(Path(path)).model if Path(path).is_dir() else Path(path)
        return _filled(convert(self.base(name), kind, self.input_size), file, kind, None)

    def plan(self, base: nn.Module, weights: Mapping[str, float] | None = None, leaders: Sequence[str] = ()) -> Plan:
        """The plan of the result, with a share of the budget for each site."""
        return make_plan(self.recipe, base, self.input_size, weights, leaders)

    def method(self, base: nn.Module, plan: Plan | None = None, weights: Mapping[str, float] | None = None) -> Method:
        """The method of the result."""
        given, dry = self.given is not None, self.context.dry
        return make_method(self.recipe, base, self.input_size, plan=plan, weights=weights, given=given, dry=dry)

    def train(
        self,
        run: RunFolder,
        kind: Kind,
        network: nn.Module,
        method: Method,
        names: tuple[str, ...],
        *,
        plan: Plan | None = None,
        teacher: nn.Module | None = None,
    ) -> nn.Module:
        """Train a network through some phases, unless that was finished before the run was interrupted."""
        if run.model.exists():
            if self.context.fabric.is_global_zero:
                run.clean()
            method.build_phase_modules(network, names[-1])
            return _filled(network, run.model, kind, plan)
        self.begin(run, plan)
        header = WeightsHeader(kind, self.input_size, plan_checksum(plan), own=self.given is not None)
        phases = {name: self._phase(name) for name in names}
        return Trainer(self.context, network, method, phases, run, header, teacher).run()

    def _phase(self, name: str) -> Phase:
        phase: Phase = getattr(self.recipe, name)
        return phase.model_copy(update={"distill": self.recipe.distill_weight(name)})

    def begin(self, run: RunFolder, plan: Plan | None = None) -> None:
        """Make a run folder."""
        if self.context.fabric.is_global_zero:
            ran_on = describe_environment(self.recipe.seed, self.hardware, self.context.data.checksum)
            source = self.context.data.train_set
            about = About.of(source, self.input_size) if isinstance(source, ImageSet) else None
            run.begin(self.recipe, ran_on, plan, about)
        self.context.fabric.barrier()

    def draw(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """A fixed random sample of training images with labels, on the device."""
        batch, device = list(self.recipe.phases.values())[-1].batch, self.context.fabric.device
        drawn = self.context.data.draw(1 if self.context.dry else count, batch)
        return [(images.to(device), labels.to(device)) for images, labels in drawn]


def _filled(network: nn.Module, path: Path, kind: Kind, plan: Plan | None) -> nn.Module:
    tensors, header = read_weights(path)
    if header.network != kind or header.plan != plan_checksum(plan):
        raise CheckpointError(f"{path} is a {header.network} network where a {kind} one is due: give another")
    fill(network, tensors, path)
    return network
