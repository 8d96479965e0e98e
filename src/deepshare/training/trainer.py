"""Training into run folders, from the beginning or from an interruption.

`Trainer` takes one network through its phases; `Networks` has those of a recipe beside its result, each of them trained
once or read from its run folder.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from deepshare.data.batching import seed_of
from deepshare.data.images import About, ImageSet
from deepshare.errors import CheckpointError
from deepshare.methods.base import Method
from deepshare.sharing.plan import Plan
from deepshare.training.batchnorm import recalibrate
from deepshare.training.build import convert, gelu_network, lay_out, layout_of, make_method, make_plan, plain_network
from deepshare.training.evaluate import Metrics
from deepshare.training.hardware import on_all_ranks
from deepshare.training.loop import PhaseContext, TrainContext, check_finite, epoch_images, train_epoch
from deepshare.training.recipe.files import Phase
from deepshare.training.reporter import EpochLine
from deepshare.training.run.checkpoint import (
    Kind,
    ResumeState,
    WeightsHeader,
    fill,
    plan_checksum,
    read_weights,
    save_weights,
)
from deepshare.training.run.folder import RunFolder, at_budget, describe_environment
from deepshare.training.shared_models import unshared

T = TypeVar("T")
Prerequisite = Literal["teacher", "plain"]


class Trainer:
    """Trains one network.

    Args:
        context: Recipe, data and devices.
        model: The network, already converted; it is trained in place.
        method: The method that it is trained by.
        phases: Its phases, in order; the `distill` of each is the weight of its teacher.
        folder: Run folder, which must exist.
        header: Header of its weights.
        teacher: The network that phases learn from; those after `gelu` may learn from the network at its end.
    """

    def __init__(
        self,
        context: TrainContext,
        model: nn.Module,
        method: Method,
        phases: Mapping[str, Phase],
        folder: RunFolder,
        header: WeightsHeader,
        teacher: nn.Module | None = None,
    ) -> None:
        self.context, self.fabric = context, context.fabric
        self.model, self.method, self.phases, self.teacher = model, method, dict(phases), teacher
        self.folder, self.header = folder, header
        self.best: float | None = None
        self.lines = 0

    def run(self) -> nn.Module:
        """Train to the end.

        Raises:
            RecipeError: The loss became NaN or infinite; the state before is kept.
            CheckpointError: The saved state is damaged or of another network, or a file cannot be written.
        """
        state = self._resume()
        names = list(self.phases)
        done = names.index(state.phase) + state.over if state else 0
        for name in names[done:]:
            self._train(name, state if state and state.phase == name else None)
        if self.fabric.is_global_zero:
            save_weights(self.folder.model, self.model, self.header)
            self.folder.clean()
        self.fabric.barrier()
        if not self.fabric.is_global_zero:  # it has BatchNorm statistics of its own; a teacher must be the same for all
            fill(self.model, read_weights(self.folder.model)[0], self.folder.model)
        return self.model

    def _resume(self) -> ResumeState | None:
        state = self.folder.read_state()
        if state:
            self.folder.recorded(state.lines)
            self.context.reporter.note(f"{self.folder.path}: goes on after epoch {state.epochs} of {state.phase}")
            self.method.build_phase_modules(self.model, state.phase)
            fill(self.model, state.model, self.folder.state)
            self.method.restore(state.method)
            self.best, self.lines = state.best, state.lines
        if self.fabric.is_global_zero:
            self.folder.truncate(self.lines)
        self.fabric.barrier()
        return state

    def _train(self, name: str, state: ResumeState | None) -> None:
        if state is None:
            self.method.on_phase_start(self.model.to(self.fabric.device), name, self._images)
        phase = self._set_up(name)
        if state:
            phase.optimiser.load_state_dict(state.optimiser)
        first = state.epochs if state else 0
        epochs = 1 if self.context.dry else phase.settings.epochs
        self.context.reporter.begin(name, epochs, first)
        for epoch in range(first, epochs):
            self.method.on_epoch_start(self.model, name, epoch, epochs)
            line = self._epoch(phase, epoch, epochs)
            over = self.method.on_epoch_end(self.model, name, epoch) or epoch + 1 == epochs
            self._save(phase, line, over)
            self.context.reporter.epoch(line, line.seconds * self._epochs_left(name, epoch + 1, over))
            if over:
                break

    def _set_up(self, name: str) -> PhaseContext:
        settings = self.phases[name]
        layout = layout_of(self.model, self.context.data.input_size)
        lay_out(self.model, layout)
        teacher = self._teacher(name)
        optimiser = self.method.optimiser(
            self.model,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            kind=settings.optimiser,
        )
        module, wrapped = self.fabric.setup(self._compiled(self.model), optimiser)
        seed = seed_of(self.context.recipe.seed, self.header.network, name)
        return PhaseContext(name, settings, seed, self.model, module, wrapped, self.method, teacher, layout)

    def _teacher(self, name: str) -> nn.Module | None:
        if not self.phases[name].distill:
            return None
        teacher = self.teacher
        itself = self.context.recipe.distillation.after_gelu == "itself"
        if itself and "gelu" in self.phases and name != "gelu":
            teacher = copy.deepcopy(self.model)
            self.method.build_phase_modules(teacher, "gelu")
            epochs = self.phases["gelu"].epochs
            self.method.on_epoch_start(
                teacher, "gelu", epochs - 1, epochs
            )  # as that phase ended, without its own ReLUs
            fill(teacher, read_weights(self.folder.soft)[0], self.folder.soft)
        if teacher is None:
            return None
        teacher = self.method.wrap_teacher(self.model, teacher, name)
        lay_out(teacher, layout_of(teacher, self.context.data.input_size)).to(self.fabric.device).eval().requires_grad_(
            False
        )
        return self._compiled(teacher)

    def _images(self, count: int) -> Tensor:
        return self.context.data.sample(1 if self.context.dry else count).to(self.fabric.device)

    def _compiled(self, network: nn.Module) -> nn.Module:
        return cast("nn.Module", torch.compile(network)) if self.context.compile else network

    def _epoch(self, phase: PhaseContext, epoch: int, epochs: int) -> EpochLine:
        began = time.perf_counter()
        trained = train_epoch(self.context, phase, epoch)
        validated = self._validate(phase, epoch)
        if not self.context.dry:  # one batch tells nothing: quadratics overflow before they are trained
            check_finite(validated.loss, self.context.recipe, phase.name, epoch)
        return EpochLine(
            phase=phase.name,
            epoch=epoch + 1,
            epochs=epochs,
            loss=trained.loss,
            accuracy=trained.accuracy,
            val_loss=validated.loss,
            val_score=validated.score,
            score="accuracy" if validated.miou is None else "miou",
            lr=trained.lr,
            seconds=time.perf_counter() - began,
            measures=self.method.measures(self.model),
        )

    def _validate(self, phase: PhaseContext, epoch: int) -> Metrics:
        """Evaluate in the first process, whose BatchNorm statistics are the ones that are saved."""
        result, limit = None, 1 if self.context.dry else None
        if self.fabric.is_global_zero:
            if phase.settings.recalibrate:
                recalibrate(self.model, epoch_images(self.context, phase, epoch, limit or phase.settings.recalibrate))
            result = self.context.data.validate(self.model, phase.settings.batch, limit=limit)
        return cast("Metrics", self.fabric.broadcast(result))

    def _save(self, phase: PhaseContext, line: EpochLine, over: bool) -> None:
        """Save an epoch. The state comes last: whatever was written before it is written again after a resume."""
        self.lines += 1
        if self.fabric.is_global_zero:
            if over and phase.name == "gelu":
                save_weights(self.folder.soft, self.model, self.header)
            candidate = phase.name == list(self.phases)[-1] and (over or at_budget(line.measures))
            if candidate and (self.best is None or line.val_score > self.best):
                self.best = line.val_score
                save_weights(self.folder.best, self.model, self.header)
            self.folder.append(line.record())
            self._state(phase, line.epoch, over).save(self.folder.state)
        self.fabric.barrier()

    def _state(self, phase: PhaseContext, epochs: int, over: bool) -> ResumeState:
        return ResumeState(
            phase=phase.name,
            epochs=epochs,
            over=over,
            lines=self.lines,
            best=self.best,
            model=self.model.state_dict(),
            optimiser=phase.optimiser.state_dict(),
            method=self.method.state(),
        )

    def _epochs_left(self, name: str, done: int, over: bool) -> int:
        names = list(self.phases)
        later = sum(1 if self.context.dry else self.phases[after].epochs for after in names[names.index(name) + 1 :])
        return later + (0 if over else self.phases[name].epochs - done)


@dataclass
class Networks:
    """The networks of one recipe.

    Attributes:
        context: Recipe, data and devices.
        out: The run folder; each network but the result has one of its own inside it.
        given: The user's own network in the place of the recipe's.
        environment: Is recorded in every run folder.
        trained: Whether the user's network is the trained plain one.
    """

    context: TrainContext
    out: Path
    given: nn.Module | None
    environment: Mapping[str, Any]
    trained: bool = False

    def __post_init__(self) -> None:
        self.recipe = self.context.recipe
        self.input_size = self.context.data.input_size

    def on_all_ranks(self, check: Callable[[], T]) -> T:
        """Run a check in all processes before any continues."""
        return on_all_ranks(self.context.fabric, check)

    def base(self, role: str, note: Callable[[str], None] | None = None) -> nn.Module:
        """Return the plain network of a role before training."""
        if self.given is None or self.recipe.model_of(role) != self.recipe.model:
            return plain_network(self.recipe, role, note)
        return unshared(self.given)

    def start(self) -> nn.Module:
        """Return the plain network that the result is made from, trained or not."""
        return self.plain() if self.recipe.starts_from_plain else self.base("shared")

    def plain(self, run: RunFolder | None = None) -> nn.Module:
        """Train the plain network, in its own run folder or in another."""
        if self.recipe.plain is None:  # then its weights were given
            return self.base("plain")
        if finished := self.finished("plain"):
            return finished
        if self.trained:
            return self._kept(RunFolder(self.out / "plain"))
        teacher = self.gelu() if self._phase("plain").distill else None
        run = run or RunFolder(self.out / "plain")
        return self.train(run, "plain", self.base("plain"), Method(), ("plain",), teacher=teacher)

    def _kept(self, run: RunFolder) -> nn.Module:
        """Keep the user's trained network as the plain one, so that the run needs it no more."""
        network = self.base("plain")
        self.begin(run)
        if self.context.fabric.is_global_zero and not run.model.exists():
            save_weights(run.model, network, WeightsHeader("plain", self.input_size, "", own=True))
        return network

    def gelu(self, run: RunFolder | None = None) -> nn.Module:
        """Train the network with GELUs, in its own run folder or in another."""
        if finished := self.finished("teacher"):
            return finished
        network = gelu_network(self.base("teacher"), self.input_size)
        return self.train(run or RunFolder(self.out / "teacher"), "gelu", network, Method(), ("teacher",))

    def teacher(self) -> nn.Module | None:
        """Train the network that the result learns from, if there is one."""
        if self.recipe.distillation.teacher == "plain":
            return self.plain() if self.recipe.needs_plain else None
        return self.gelu() if self.recipe.needs_teacher else None

    def finished(self, name: Prerequisite) -> nn.Module | None:
        """Return the trained network that a recipe gives instead of one to train, if there is one."""
        path = getattr(self.recipe.phases.get(name), "weights", None)
        if path is None:
            return None
        kind: Kind = "gelu" if name == "teacher" else "plain"
        file = RunFolder(Path(path)).model if Path(path).is_dir() else Path(path)
        return _filled(convert(self.base(name), kind, self.input_size), file, kind, None)

    def plan(self, base: nn.Module, weights: Mapping[str, float] | None = None, leaders: Sequence[str] = ()) -> Plan:
        """Make the plan of the result."""
        return make_plan(self.recipe, base, self.input_size, weights, leaders)

    def method(self, base: nn.Module, plan: Plan | None = None, weights: Mapping[str, float] | None = None) -> Method:
        """Make the method of the result."""
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
        """Create a run folder."""
        if self.context.fabric.is_global_zero:
            ran_on = describe_environment(self.recipe.seed, self.environment, self.context.data.checksum)
            source = self.context.data.train_set
            about = About.of(source, self.input_size) if isinstance(source, ImageSet) else None
            run.begin(self.recipe, ran_on, plan, about)
        self.context.fabric.barrier()

    def draw(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return a fixed random sample of training images with labels, on the device."""
        batch, device = list(self.recipe.phases.values())[-1].batch, self.context.fabric.device
        drawn = self.context.data.draw(1 if self.context.dry else count, batch)
        return [(images.to(device), labels.to(device)) for images, labels in drawn]


def _filled(network: nn.Module, path: Path, kind: Kind, plan: Plan | None) -> nn.Module:
    tensors, header = read_weights(path)
    if header.network != kind or header.plan != plan_checksum(plan):
        raise CheckpointError(f"{path} is a {header.network} network where a {kind} one is due: give another")
    fill(network, tensors, path)
    return network
