"""The XOR task of the paper's section 5: which networks with a single gate learn the 2 x 2 checkerboard?

A point (x1, x2) of the square [-1, 1]^2 has label 1 where the signs of x1 and x2 differ. Four methods are trained on it
from many seeds, all of them in one batch. The points, steps and epochs are the paper's; what it leaves open is settled
so: the loss is binary cross-entropy; layers start like those of PyTorch, alpha and beta uniformly in [-1, 1); the
sharpness is 4, which the paper takes where values are small, as they are here; the GELU phase has four fifths of the
epochs, because after the switch only its own output moves the prototype, which can lose the solution again.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from deepshare.errors import DeepShareError
from deepshare.sharing.gates import hard_channels
from deepshare.study.xor_networks import ALPHA, BETA, BIAS, OUT, WEIGHT, Networks
from deepshare.text import table

SOLVED = 0.98
GRID = 100


@dataclass(frozen=True)
class Method:
    """One way to spend a single gate.

    Attributes:
        name: Short name.
        title: What the figure calls it.
        neurons: In the hidden layer; the first has the gate.
        shares: Whether the other neurons read that gate, with learned alpha and beta; otherwise they are linear.
        gelu: Whether training begins with soft gates.
    """

    name: str
    title: str
    neurons: int
    shares: bool = False
    gelu: bool = False


METHODS = (
    Method("relu", "One ReLU neuron", 1),
    Method("snl", "SNL style: one ReLU, three linear neurons", 4),
    Method("deepshare", "DeepShare with the GELU phase", 2, shares=True, gelu=True),
    Method("deepshare-hard", "DeepShare without the GELU phase", 2, shares=True),
)


@dataclass(frozen=True)
class Settings:
    """How the networks are trained.

    Attributes:
        seeds: How many networks of each method; seed i draws the same points and start values for all methods.
        epochs: Of training, for every method.
        points: Points to learn from.
        batch: Points of a step.
        rate: Learning rate.
        start: Start values of alpha and beta where they are learned.
        sharpness: Of the soft gate.
        gelu: Share of the epochs with soft gates.
        switch: Share of the epochs in which the channels turn hard, the last first; the rest has hard gates.
    """

    seeds: int = 64
    epochs: int = 5_000
    points: int = 800
    batch: int = 32
    rate: float = 0.1
    start: Literal["identity", "uniform"] = "uniform"
    sharpness: float = 4.0
    gelu: float = 0.8
    switch: float = 0.1

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "points", "batch"):
            if getattr(self, name) < 1:
                raise DeepShareError(f"{name} {getattr(self, name)}: give at least 1")
        if min(self.gelu, self.switch) < 0 or self.gelu + self.switch > 1:
            raise DeepShareError(
                f"gelu {self.gelu} and switch {self.switch}: give shares of the epochs, together up to 1"
            )

    def soft_neurons(self, epoch: int, neurons: int = 2) -> int:
        """How many neurons, the first ones, read the soft gate in an epoch (from 0) of a method with the GELU phase."""
        begin, steps = int(self.gelu * self.epochs), int(self.switch * self.epochs)
        progress = min(1.0, (epoch + 1 - begin) / steps) if steps else 1.0
        return neurons - hard_channels(neurons, progress if epoch >= begin else 0.0)


@dataclass(frozen=True)
class Outcome:
    """What became of one method.

    Attributes:
        method: The method.
        accuracies: On the grid, for each seed.
        shown: The seed of median accuracy.
        network: Its network.
        points: The points it learned from, (2, points).
    """

    method: Method
    accuracies: tuple[float, ...]
    shown: int
    network: Networks
    points: Tensor

    @property
    def solved(self) -> int:
        """How many seeds solve the task."""
        return sum(accuracy >= SOLVED for accuracy in self.accuracies)

    @property
    def rate(self) -> float:
        """The share of seeds that solve it."""
        return self.solved / len(self.accuracies)

    @property
    def range(self) -> tuple[float, float, float]:
        """The accuracies of the worst, the median and the best seed."""
        return min(self.accuracies), self.accuracies[self.shown], max(self.accuracies)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the parameters of the network that is shown."""
        used = self.network.neurons[:, : self.method.neurons, 0]
        shown = {"seed": self.shown, "weight": used[WEIGHT].T.tolist(), "bias": used[BIAS].tolist()}
        shown |= {"alpha": used[ALPHA].tolist(), "beta": used[BETA].tolist(), "out": used[OUT].tolist()}
        return {
            "title": self.method.title,
            "gates": 1,
            "neurons": self.method.neurons,
            "solved": self.solved,
            "success_rate": self.rate,
            "accuracy": list(self.accuracies),
            "shown": {**shown, "offset": self.network.offset.item()},
        }


@dataclass(frozen=True)
class Result:
    """What became of all methods."""

    settings: Settings
    outcomes: tuple[Outcome, ...]
    seconds: float

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.method.name == name)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "settings": asdict(self.settings),
            "solved_at": SOLVED,
            "grid": [GRID, GRID],
            "seconds": round(self.seconds, 1),
            "methods": {outcome.method.name: outcome.to_dict() for outcome in self.outcomes},
        }

    def __str__(self) -> str:
        rows = [
            (
                outcome.method.title,
                f"{outcome.solved} of {len(outcome.accuracies)}",
                f"{outcome.rate:.1%}",
                *(f"{share:.2%}" for share in outcome.range),
            )
            for outcome in self.outcomes
        ]
        header = ("method", "seeds that solve it", "rate", "worst seed", "median seed", "best seed")
        meaning = f"the last three: share of a grid that is labelled rightly; {SOLVED:.0%} of it counts as solved"
        return f"{table(header, rows, '<>>>>>')}\n{meaning}"


def run(settings: Settings | None = None, progress: Callable[[int, int], None] | None = None) -> Result:
    """Train every method from every seed and see which solve the task.

    Args:
        settings: How they are trained; by default as the paper does it.
        progress: Called after every epoch with the epochs done and the epochs in all.
    """
    settings = Settings() if settings is None else settings
    began = time.perf_counter()
    with _one_thread():
        networks, points = begin(settings)
        train(networks, points, settings, progress)
        outcomes = tuple(_outcome(networks, points, index) for index in range(len(METHODS)))
    return Result(settings, outcomes, time.perf_counter() - began)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Steps this small are slower when threads must meet in each of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def begin(settings: Settings) -> tuple[Networks, Tensor]:
    """The networks before training, the seeds of METHODS[0] first, and the points of each seed, (2, points, seeds)."""
    width = max(method.neurons for method in METHODS)
    draws = [_draw(seed, settings.points, width) for seed in range(settings.seeds)]
    points, neurons, offset = (torch.stack(parts, -1) for parts in zip(*draws, strict=True))
    starts = [_start(method, neurons, offset, settings.start) for method in METHODS]
    neurons, offset, learned = (torch.cat(parts, -1) for parts in zip(*starts, strict=True))
    first = [method.gelu for method in METHODS].index(True) * settings.seeds
    phased = slice(first, first + settings.seeds)
    return Networks(neurons, offset, learned, phased=phased, sharpness=settings.sharpness), points


def _draw(seed: int, points: int, neurons: int) -> tuple[Tensor, Tensor, Tensor]:
    """The points of a seed, the parameters of its neurons and its offset, all uniform in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    square = torch.rand(2, points, generator=generator) * 2 - 1
    hidden = torch.rand(6, neurons, generator=generator) * 2 - 1
    return square, hidden, torch.rand((), generator=generator) * 2 - 1


def _start(method: Method, neurons: Tensor, offset: Tensor, start: str) -> tuple[Tensor, Tensor, Tensor]:
    """Neurons, offset and what is learned of the neurons for one method, from draws in [-1, 1)."""
    neurons, learned = neurons.clone(), torch.ones_like(neurons)
    # The layers start like nn.Linear: uniformly within 1 / sqrt(inputs).
    neurons[WEIGHT] /= math.sqrt(2)
    neurons[BIAS] /= math.sqrt(2)
    neurons[OUT] /= math.sqrt(method.neurons)
    if start == "identity" or not method.shares:
        neurons[ALPHA], neurons[BETA] = 1.0, 0.0
    if not method.shares:
        neurons[ALPHA, 1:], neurons[BETA, 1:] = 0.0, 1.0
        learned[ALPHA] = learned[BETA] = 0.0
    neurons[OUT, method.neurons :] = learned[:, method.neurons :] = 0.0
    return neurons, offset / math.sqrt(method.neurons), learned


def train(
    networks: Networks, points: Tensor, settings: Settings, progress: Callable[[int, int], None] | None = None
) -> None:
    """Train the networks in place; the points of each seed come in a new order in each epoch."""
    examples = torch.cat([points, label(points)[None]])
    generator = torch.Generator().manual_seed(0)
    for epoch in range(settings.epochs):
        networks.soft = settings.soft_neurons(epoch)
        order = torch.randperm(settings.points, generator=generator)
        for batch in examples[:, order].repeat(1, 1, len(METHODS)).split(settings.batch, dim=1):
            networks.step(batch[:2], batch[2], settings.rate)
        if progress is not None:
            progress(epoch + 1, settings.epochs)
    networks.soft = 0


def label(points: Tensor) -> Tensor:
    """The checkerboard: 1.0 where the signs of the two coordinates, the first dimension, differ."""
    return ((points[0] >= 0) != (points[1] >= 0)).to(points.dtype)


def grid(side: int = GRID) -> Tensor:
    """The centres of side x side cells of the square, (2, side^2, 1), row by row; none on an axis if side is even."""
    centres = (torch.arange(side) * 2 + 1) / side - 1
    x2, x1 = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x1, x2]).view(2, -1, 1)


def accuracies(networks: Networks) -> Tensor:
    """The share of the grid that each network labels rightly."""
    points = grid()
    return ((networks.forward(points).logits > 0) == (label(points) > 0)).double().mean(0)


def _outcome(networks: Networks, points: Tensor, index: int) -> Outcome:
    seeds = points.shape[-1]
    own = networks.select(slice(index * seeds, (index + 1) * seeds))
    shares = accuracies(own)
    shown = int(shares.median(0).indices)
    values = tuple(round(share, 6) for share in shares.tolist())
    return Outcome(METHODS[index], values, shown, own.select(slice(shown, shown + 1)), points[..., shown])
