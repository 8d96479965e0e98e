"""The one training loop, with its losses and learning rates: every method, phase and network goes through it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import Tensor, nn

from deepshare.data.batching import Batches, seed_of
from deepshare.errors import RecipeError
from deepshare.methods.base import Method
from deepshare.training.data_source import DataSource
from deepshare.training.recipe.files import Phase, Recipe
from deepshare.training.recipe.schema import RESULT_PHASES
from deepshare.training.reporter import Reporter

CHECK_EVERY = 50  # steps between two checks of the loss, each of which waits for the device
LINEAR_SHARE = 0.75  # the paper's linear schedule ends at 75% of the phase
POLY_POWER = 0.9


@dataclass(frozen=True)
class TrainContext:
    """The recipe, data and devices that all networks of one recipe are trained with.

    Attributes:
        recipe: The recipe.
        fabric: Devices and processes.
        data: The data.
        reporter: Receives every phase and epoch.
        compile: Compile the network.
        dry: Train one batch of every phase.
    """

    recipe: Recipe
    fabric: Fabric
    data: DataSource
    reporter: Reporter
    compile: bool = False
    dry: bool = False


@dataclass(frozen=True)
class PhaseContext:
    """One phase of one network.

    Attributes:
        name: The phase.
        settings: Its section of the recipe; `distill` is the weight of the teacher.
        seed: Of everything random in it.
        model: The network.
        module: The same as the devices see it: compiled, or one of several processes.
        optimiser: Over its parameters.
        method: The method that it is trained by.
        teacher: The network that it learns from, if there is one.
        layout: Of images in memory.
    """

    name: str
    settings: Phase
    seed: int
    model: nn.Module
    module: _FabricModule
    optimiser: _FabricOptimizer
    method: Method
    teacher: nn.Module | None
    layout: torch.memory_format


@dataclass(frozen=True)
class EpochMeans:
    """Means over the images of an epoch, and the learning rate of its last step."""

    loss: float
    accuracy: float
    lr: float


def train_epoch(context: TrainContext, phase: PhaseContext, epoch: int) -> EpochMeans:
    """Train for one epoch, counted from 0; its randomness depends on seed, epoch and step alone.

    Raises:
        RecipeError: The loss became NaN or infinite.
    """
    batches = _batches(context, phase, epoch)
    steps = len(batches)
    sums, lr = _Sums(context.fabric), phase.settings.lr
    phase.module.train()
    for step, (pixels, labels) in enumerate(batches):
        images = pixels.contiguous(memory_format=phase.layout)
        lr = learning_rate(phase.settings, epoch * steps + step, steps)
        torch.manual_seed(seed_of(phase.seed, epoch, step, context.fabric.global_rank))  # dropout
        sums.add(len(images), *_step(context, phase, images, labels, lr))
        if step % CHECK_EVERY == CHECK_EVERY - 1:
            loss = check_finite(sums.loss_here(), context.recipe, phase.name, epoch)
            context.reporter.step((step + 1) / steps, loss)
        if context.dry:
            break
    loss, accuracy = sums.means()
    return EpochMeans(loss if context.dry else check_finite(loss, context.recipe, phase.name, epoch), accuracy, lr)


def epoch_images(context: TrainContext, phase: PhaseContext, epoch: int, count: int) -> Iterator[Tensor]:
    """Yield the images of the first batches of an epoch, as this process trains on them."""
    for pixels, _ in islice(_batches(context, phase, epoch), count):
        yield pixels.contiguous(memory_format=phase.layout)


def _batches(context: TrainContext, phase: PhaseContext, epoch: int) -> Batches:
    torch.manual_seed(seed_of(phase.seed, epoch))  # the order of a DataLoader of the user
    return context.data.train(phase.settings.batch, phase.seed, epoch, context.fabric)


def _step(
    context: TrainContext, phase: PhaseContext, images: Tensor, labels: Tensor, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    for group in phase.optimiser.param_groups:
        group["lr"] = lr
    logits = phase.module(images)
    loss = _loss(context, phase, images, logits, labels)
    context.fabric.backward(loss)
    if phase.settings.clip:
        context.fabric.clip_gradients(phase.module, phase.optimiser, clip_val=phase.settings.clip)
    phase.optimiser.step()
    phase.optimiser.zero_grad()
    known = labels != context.data.skip
    return loss.detach(), (logits.detach().argmax(1) == labels).sum(), known.sum()


def _loss(context: TrainContext, phase: PhaseContext, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    weights = context.recipe.distillation
    loss = cross_entropy(logits, labels, context.data.ignore)
    if phase.teacher is not None:
        with torch.no_grad(), context.fabric.autocast():
            target = phase.teacher(images)
        learned = distillation(logits, target.to(logits.dtype), weights.temperature)
        loss = weights.ce_weight * loss + (phase.settings.distill or 0.0) * learned
    penalty = phase.method.penalty(phase.model)
    return loss if penalty is None else loss + penalty


def cross_entropy(logits: Tensor, labels: Tensor, ignore: int | None = None) -> Tensor:
    """Mean cross-entropy over images, or over labelled pixels; 0 where nothing is labelled."""
    if ignore is None:
        return F.cross_entropy(logits, labels)
    summed = F.cross_entropy(logits, labels, ignore_index=ignore, reduction="sum")
    return summed / (labels != ignore).sum().clamp(min=1)


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of the softened predictions, summed over classes and averaged over the batch."""
    student = F.log_softmax(logits / temperature, dim=1)
    target = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def mean_loss(batches: Sequence[tuple[Tensor, Tensor]], ignore: int | None) -> Callable[[nn.Module], float]:
    """Return a function from a network to its mean cross-entropy over some batches."""

    @torch.no_grad()
    def loss(network: nn.Module) -> float:
        sums = [len(images) * cross_entropy(network(images), labels, ignore) for images, labels in batches]
        return float(sum(sums)) / sum(len(images) for images, _ in batches)

    return loss


def learning_rate(phase: Phase, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step of a phase, counted from 0; a pure function, so that nothing has to be resumed.

    `linear` falls to the end rate at 75% of the phase and stays there; `cosine` and `poly` reach it with the phase;
    `steps` multiplies by the factor at each milestone; `none` stays at the start rate.

    >>> phase = Phase(epochs=4, batch=8, lr=1.0, end_lr=0.0, schedule="linear", weight_decay=0.0)
    >>> [learning_rate(phase, step, steps_per_epoch=10) for step in (0, 15, 30, 39)]
    [1.0, 0.5, 0.0, 0.0]
    """
    passed = step / (steps_per_epoch * phase.epochs)
    end = phase.end_lr or 0.0
    match phase.schedule:
        case "none":
            return phase.lr
        case "linear":
            left = max(0.0, 1 - passed / LINEAR_SHARE)
        case "cosine":
            left = (1 + math.cos(math.pi * passed)) / 2
        case "poly":
            left = (1 - passed) ** POLY_POWER
        case "steps":
            return phase.lr * (phase.factor or 1.0) ** sum(passed >= milestone for milestone in phase.milestones)
    return end + (phase.lr - end) * left


def check_finite(loss: float, recipe: Recipe, phase: str, epoch: int) -> float:
    """Return the loss, or stop a run whose loss became NaN or infinite."""
    if math.isfinite(loss):
        return loss
    others = [name for name in ("teacher", "plain") if name in recipe.phases and phase in RESULT_PHASES]
    trained = [f"--{name} RUN/{name}" for name in others if not getattr(recipe, name).weights]
    raise RecipeError(
        f"the loss is {loss} in epoch {epoch + 1} of {phase}; what was saved before that epoch is kept: "
        f"start anew with a lower {phase}.lr{' and ' * bool(trained)}{' '.join(trained)}"
    )


class _Sums:
    """The running sums of an epoch; they stay on the device, and nothing waits for them until they are asked for."""

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
