"""A network through its phases into a run folder, from the beginning or from wherever it was interrupted."""

import copy
import time
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from deepshare.data.seeds import seed_of
from deepshare.methods.base import Method
from deepshare.training.build import lay_out, layout_of
from deepshare.training.evaluate import Result
from deepshare.training.loop import Setting, Work, check_finite, train_epoch
from deepshare.training.recipe.files import Phase
from deepshare.training.reporter import EpochLine
from deepshare.training.run.folder import RunFolder
from deepshare.training.run.resume_state import State
from deepshare.training.run.weights import Label, fill, read_weights, save_weights


class Training:
    """One network on its way.

    Args:
        setting: What it is trained with.
        model: The network, already converted; it is trained in place.
        method: What is special about it.
        phases: What it goes through, in order; the `distill` of each is the weight of its teacher.
        folder: Where everything is saved; it must have been begun.
        label: What its weights are.
        teacher: Whom the phases learn from; those after `gelu` may learn from the network at its end.
    """

    def __init__(
        self,
        setting: Setting,
        model: nn.Module,
        method: Method,
        phases: Mapping[str, Phase],
        folder: RunFolder,
        label: Label,
        teacher: nn.Module | None = None,
    ) -> None:
        self.setting, self.fabric = setting, setting.fabric
        self.model, self.method, self.phases, self.teacher = model, method, dict(phases), teacher
        self.folder, self.label = folder, label
        self.best: float | None = None
        self.lines = 0

    def run(self) -> nn.Module:
        """Train to the end.

        Raises:
            RecipeError: The loss is no longer a number; the state before is kept.
            CheckpointError: The saved state is damaged or of another network, or a file cannot be written.
        """
        state = self._resume()
        names = list(self.phases)
        done = names.index(state.phase) + state.over if state else 0
        for name in names[done:]:
            self._train(name, state if state and state.phase == name else None)
        if self.fabric.is_global_zero:
            save_weights(self.folder.model, self.model, self.label)
            self.folder.clean()
        self.fabric.barrier()
        if not self.fabric.is_global_zero:  # it has BatchNorm statistics of its own; a teacher must be the same for all
            fill(self.model, read_weights(self.folder.model)[0], self.folder.model)
        return self.model

    def _resume(self) -> State | None:
        state = self.folder.read_state()
        if state:
            self.folder.recorded(state.lines)
            self.setting.reporter.note(f"{self.folder.path}: goes on after epoch {state.epochs} of {state.phase}")
            self.method.form(self.model, state.phase)
            fill(self.model, state.model, self.folder.state)
            self.method.restore(state.method)
            self.best, self.lines = state.best, state.lines
        if self.fabric.is_global_zero:
            self.folder.truncate(self.lines)
        self.fabric.barrier()
        return state

    def _train(self, name: str, state: State | None) -> None:
        if state is None:
            self.method.begin(self.model.to(self.fabric.device), name, self._images)
        work = self._set_up(name)
        if state:
            work.optimiser.load_state_dict(state.optimiser)
        first = state.epochs if state else 0
        epochs = 1 if self.setting.dry else work.phase.epochs
        self.setting.reporter.begin(name, epochs, first)
        for epoch in range(first, epochs):
            self.method.start_epoch(self.model, name, epoch, epochs)
            line = self._epoch(work, epoch, epochs)
            over = self.method.end_epoch(self.model, name, epoch) or epoch + 1 == epochs
            self._save(work, line, over)
            self.setting.reporter.epoch(line, line.seconds * self._epochs_left(name, epoch + 1, over))
            if over:
                break

    def _set_up(self, name: str) -> Work:
        phase = self.phases[name]
        layout = layout_of(self.model)
        lay_out(self.model, layout)
        teacher = self._teacher(name)
        optimiser = self.method.optimiser(
            self.model,
            lr=phase.lr,
            momentum=phase.momentum,
            weight_decay=phase.weight_decay,
            kind=phase.optimiser,
        )
        module, wrapped = self.fabric.setup(self._compiled(self.model), optimiser)
        seed = seed_of(self.setting.recipe.seed, self.label.network, name)
        return Work(name, phase, seed, self.model, module, wrapped, self.method, teacher, layout)

    def _teacher(self, name: str) -> nn.Module | None:
        if not self.phases[name].distill:
            return None
        teacher = self.teacher
        itself = self.setting.recipe.distillation.after_gelu == "itself"
        if itself and "gelu" in self.phases and name != "gelu":
            teacher = copy.deepcopy(self.model)
            self.method.form(teacher, "gelu")
            epochs = self.phases["gelu"].epochs
            self.method.start_epoch(teacher, "gelu", epochs - 1, epochs)  # as that phase ended, without its own ReLUs
            fill(teacher, read_weights(self.folder.soft)[0], self.folder.soft)
        if teacher is None:
            return None
        teacher = self.method.watch(self.model, teacher, name)
        lay_out(teacher, layout_of(teacher)).to(self.fabric.device).eval().requires_grad_(False)
        return self._compiled(teacher)

    def _images(self, count: int) -> Tensor:
        return self.setting.feed.sample(1 if self.setting.dry else count).to(self.fabric.device)

    def _compiled(self, network: nn.Module) -> nn.Module:
        return cast("nn.Module", torch.compile(network)) if self.setting.compile else network

    def _epoch(self, work: Work, epoch: int, epochs: int) -> EpochLine:
        began = time.perf_counter()
        trained = train_epoch(self.setting, work, epoch)
        validated = self._validate(work.phase.batch)
        if not self.setting.dry:  # one batch tells nothing: quadratics overflow before they are trained
            check_finite(validated.loss, self.setting.recipe, work.name, epoch)
        return EpochLine(
            phase=work.name,
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

    def _validate(self, batch: int) -> Result:
        """Evaluate in the first process, whose BatchNorm statistics are the ones that are saved."""
        result = None
        if self.fabric.is_global_zero:
            result = self.setting.feed.validate(self.model, batch, limit=1 if self.setting.dry else None)
        return cast("Result", self.fabric.broadcast(result))

    def _save(self, work: Work, line: EpochLine, over: bool) -> None:
        """Save an epoch. The state comes last: whatever was written before it is written again after a resume."""
        self.lines += 1
        if self.fabric.is_global_zero:
            if over and work.name == "gelu":
                save_weights(self.folder.soft, self.model, self.label)
            if work.name == list(self.phases)[-1] and (self.best is None or line.val_score > self.best):
                self.best = line.val_score
                save_weights(self.folder.best, self.model, self.label)
            self.folder.append(line.record())
            self._state(work, line.epoch, over).save(self.folder.state)
        self.fabric.barrier()

    def _state(self, work: Work, epochs: int, over: bool) -> State:
        return State(
            phase=work.name,
            epochs=epochs,
            over=over,
            lines=self.lines,
            best=self.best,
            model=self.model.state_dict(),
            optimiser=work.optimiser.state_dict(),
            method=self.method.state(),
        )

    def _epochs_left(self, name: str, done: int, over: bool) -> int:
        names = list(self.phases)
        later = sum(1 if self.setting.dry else self.phases[after].epochs for after in names[names.index(name) + 1 :])
        return later + (0 if over else self.phases[name].epochs - done)
