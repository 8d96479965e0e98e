"""The one training loop: every method, phase and network goes through `train_epoch`."""

import math
from dataclasses import dataclass
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import Tensor, nn

from deepshare.data.seeds import seed_of
from deepshare.errors import RecipeError
from deepshare.methods.base import Method
from deepshare.training.data_source import Feed
from deepshare.training.losses import cross_entropy, distillation
from deepshare.training.lr_schedules import rate
from deepshare.training.recipe.files import Phase, Recipe
from deepshare.training.recipe.schema import RESULT_PHASES
from deepshare.training.reporter import Reporter

LOOK_EVERY = 50  # steps between two looks at the loss, each of which waits for the device


@dataclass(frozen=True)
class Setting:
    """What all networks of one recipe are trained with.

    Attributes:
        recipe: The recipe.
        fabric: Devices and processes.
        feed: The data.
        reporter: Who is told.
        compile: Whether to compile the network.
        dry: Whether every phase is only one batch.
    """

    recipe: Recipe
    fabric: Fabric
    feed: Feed
    reporter: Reporter
    compile: bool = False
    dry: bool = False


@dataclass(frozen=True)
class Work:
    """One phase at work.

    Attributes:
        name: The phase.
        phase: What the recipe says of it; its `distill` is the weight of the teacher.
        seed: Of everything random in it.
        model: The network.
        module: The same as the devices see it: compiled, or one of several processes.
        optimiser: Over its parameters.
        method: What is special about the network.
        teacher: Whom it learns from.
        layout: Of images in memory.
    """

    name: str
    phase: Phase
    seed: int
    model: nn.Module
    module: _FabricModule
    optimiser: _FabricOptimizer
    method: Method
    teacher: nn.Module | None
    layout: torch.memory_format


@dataclass(frozen=True)
class Trained:
    """Means over the images of an epoch, and the learning rate of its last step."""

    loss: float
    accuracy: float
    lr: float


def train_epoch(setting: Setting, work: Work, epoch: int) -> Trained:
    """Train for one epoch, counted from 0; what is random in it depends on seed, epoch and step alone.

    Raises:
        RecipeError: The loss is no longer a number.
    """
    torch.manual_seed(seed_of(work.seed, epoch))  # the order of a DataLoader of the user
    feed = setting.feed.train(work.phase.batch, work.seed, epoch, setting.fabric)
    steps = len(feed)
    sums, lr = _Sums(setting.fabric), work.phase.lr
    work.module.train()
    for step, (pixels, labels) in enumerate(feed):
        images = pixels.contiguous(memory_format=work.layout)
        lr = rate(work.phase, epoch * steps + step, steps)
        torch.manual_seed(seed_of(work.seed, epoch, step, setting.fabric.global_rank))  # dropout
        sums.add(len(images), *_step(setting, work, images, labels, lr))
        if step % LOOK_EVERY == LOOK_EVERY - 1:
            setting.reporter.step((step + 1) / steps, check_finite(sums.loss_here(), setting.recipe, work.name, epoch))
        if setting.dry:
            break
    loss, accuracy = sums.means()
    return Trained(loss if setting.dry else check_finite(loss, setting.recipe, work.name, epoch), accuracy, lr)


def _step(setting: Setting, work: Work, images: Tensor, labels: Tensor, lr: float) -> tuple[Tensor, Tensor, Tensor]:
    for group in work.optimiser.param_groups:
        group["lr"] = lr
    logits = work.module(images)
    loss = _loss(setting, work, images, logits, labels)
    setting.fabric.backward(loss)
    if work.phase.clip:
        setting.fabric.clip_gradients(work.module, work.optimiser, clip_val=work.phase.clip)
    work.optimiser.step()
    work.optimiser.zero_grad()
    known = labels != setting.feed.skip
    return loss.detach(), (logits.detach().argmax(1) == labels).sum(), known.sum()


def _loss(setting: Setting, work: Work, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    weights = setting.recipe.distillation
    loss = cross_entropy(logits, labels, setting.feed.ignore)
    if work.teacher is not None:
        with torch.no_grad(), setting.fabric.autocast():
            target = work.teacher(images)
        learned = distillation(logits, target.to(logits.dtype), weights.temperature)
        loss = weights.ce_weight * loss + (work.phase.distill or 0.0) * learned
    penalty = work.method.penalty(work.model)
    return loss if penalty is None else loss + penalty


def check_finite(loss: float, recipe: Recipe, phase: str, epoch: int) -> float:
    """Return the loss, or stop a run whose loss is no longer a number."""
    if math.isfinite(loss):
        return loss
    others = [name for name in ("teacher", "plain") if name in recipe.phases and phase in RESULT_PHASES]
    trained = [f"--{name} RUN/{name}" for name in others if not getattr(recipe, name).weights]
    raise RecipeError(
        f"the loss is {loss} in epoch {epoch + 1} of {phase}; what was saved before that epoch is kept: "
        f"start anew with a lower {phase}.lr{' and ' * bool(trained)}{' '.join(trained)}"
    )


class _Sums:
    """What an epoch adds up; the tensors stay on the device, and nothing waits for them until they are asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.loss = torch.zeros((), device=fabric.device)
        self.labels = torch.zeros(2, dtype=torch.long, device=fabric.device)  # right ones, all
        self.images = 0

    def add(self, images: int, loss: Tensor, right: Tensor, labels: Tensor) -> None:
        self.loss += loss * images
        self.labels += torch.stack([right, labels])
        self.images += images

    def loss_here(self) -> float:
        return float(self.loss) / self.images

    def means(self) -> tuple[float, float]:
        """Loss and accuracy over all processes."""
        loss, images = self._everywhere(torch.stack([self.loss, self.loss.new_tensor(self.images)])).tolist()
        right, labels = self._everywhere(self.labels).tolist()
        return loss / images, right / max(labels, 1)

    def _everywhere(self, values: Tensor) -> Tensor:
        return (
            values if self.fabric.world_size == 1 else cast("Tensor", self.fabric.all_reduce(values, reduce_op="sum"))
        )
