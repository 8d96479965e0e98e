"""The training of one network through its phases into a run folder, from the beginning or from an interruption."""

import copy
import time
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from deepshare.data.seeds import seed_of
from deepshare.methods.base import Method
from deepshare.training.build import lay_out, layout_of
from deepshare.training.evaluate import Metrics
from deepshare.training.loop import PhaseContext, TrainContext, check_finite, train_epoch
from deepshare.training.recipe.files import Phase
from deepshare.training.reporter import EpochLine
from deepshare.training.run.checkpoint import ResumeState, WeightsHeader, fill, read_weights, save_weights
from deepshare.training.run.folder import RunFolder


class Trainer:
    """Trains one network.

    Args:
        context: Recipe, data and devices.
        model: The network, already converted; it is trained in place.
        method: The method that it is trained by.
        phases: Its phases, in order; the `distill` of each is the weight of its teacher.
        folder: Where everything is saved; it must have been begun.
        header: Of its weights.
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
        layout = layout_of(self.model)
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
        lay_out(teacher, layout_of(teacher)).to(self.fabric.device).eval().requires_grad_(False)
        return self._compiled(teacher)

    def _images(self, count: int) -> Tensor:
        return self.context.data.sample(1 if self.context.dry else count).to(self.fabric.device)

    def _compiled(self, network: nn.Module) -> nn.Module:
        return cast("nn.Module", torch.compile(network)) if self.context.compile else network

    def _epoch(self, phase: PhaseContext, epoch: int, epochs: int) -> EpochLine:
        began = time.perf_counter()
        trained = train_epoch(self.context, phase, epoch)
        validated = self._validate(phase.settings.batch)
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

    def _validate(self, batch: int) -> Metrics:
        """Evaluate in the first process, whose BatchNorm statistics are the ones that are saved."""
        result = None
        if self.fabric.is_global_zero:
            result = self.context.data.validate(self.model, batch, limit=1 if self.context.dry else None)
        return cast("Metrics", self.fabric.broadcast(result))

    def _save(self, phase: PhaseContext, line: EpochLine, over: bool) -> None:
        """Save an epoch. The state comes last: whatever was written before it is written again after a resume."""
        self.lines += 1
        if self.fabric.is_global_zero:
            if over and phase.name == "gelu":
                save_weights(self.folder.soft, self.model, self.header)
            if phase.name == list(self.phases)[-1] and (self.best is None or line.val_score > self.best):
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
