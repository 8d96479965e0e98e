"""The XOR experiment: four kinds of networks with a single gate, trained on the 2 x 2 checkerboard from many seeds.

A point (x1, x2) of the square [-1, 1]^2 has label 1 where the signs of x1 and x2 differ. All networks are trained in
one batch. Points, steps and epochs are the paper's. Choices that it leaves open: the loss is binary cross-entropy;
layers are initialised as in PyTorch, alpha and beta uniformly in [-1, 1); the sharpness is 4, the paper's value for
small inputs, as here; the GELU phase has four fifths of the epochs, because after the switch only the prototype's own
output moves it, and it can lose the solution again.
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
from deepshare.study.xor.networks import ALPHA, BETA, BIAS, OUT, WEIGHT, XorNetworks
from deepshare.text import table

SOLVED = 0.98
GRID = 100


@dataclass(frozen=True)
class XorMethod:
    """A use of the single gate.

    Attributes:
        name: Short name.
        title: Name in the figure.
        neurons: Neurons of the hidden layer; the first has the gate.
        shares: Whether the other neurons use that gate, with learned alpha and beta; otherwise they are linear.
        gelu: Whether training starts with soft gates.
    """

    name: str
    title: str
    neurons: int
    shares: bool = False
    gelu: bool = False


METHODS = (
    XorMethod("relu", "One ReLU neuron", 1),
    XorMethod("snl", "SNL style: one ReLU, three linear neurons", 4),
    XorMethod("deepshare", "DeepShare with the GELU phase", 2, shares=True, gelu=True),
    XorMethod("deepshare-hard", "DeepShare without the GELU phase", 2, shares=True),
)


@dataclass(frozen=True)
class XorSettings:
    """Training settings.

    Attributes:
        seeds: XorNetworks per method; seed i draws the same points and initial values for all methods.
        epochs: Epochs of training, for every method.
        points: Number of training points.
        batch: Batch size.
        rate: Learning rate.
        start: Initial values of alpha and beta where they are learned.
        sharpness: Sharpness of the soft gate.
        gelu: Share of the epochs with soft gates.
        switch: Share of the epochs in which the channels turn hard, last channel first; in the rest all are hard.
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
        """Number of leading neurons that use the soft gate in an epoch (from 0) of a method with the GELU phase."""
        begin, steps = int(self.gelu * self.epochs), int(self.switch * self.epochs)
        progress = min(1.0, (epoch + 1 - begin) / steps) if steps else 1.0
        return neurons - hard_channels(neurons, progress if epoch >= begin else 0.0)


@dataclass(frozen=True)
class XorOutcome:
    """Result of one method.

    Attributes:
        method: The method.
        accuracies: Accuracy on the grid, per seed.
        shown: Seed of median accuracy.
        network: Network of that seed.
        points: Its training points, (2, points).
    """

    method: XorMethod
    accuracies: tuple[float, ...]
    shown: int
    network: XorNetworks
    points: Tensor

    @property
    def solved(self) -> int:
        """Number of seeds that solve the task."""
        return sum(accuracy >= SOLVED for accuracy in self.accuracies)

    @property
    def rate(self) -> float:
        """Share of seeds that solve the task."""
        return self.solved / len(self.accuracies)

    @property
    def range(self) -> tuple[float, float, float]:
        """Accuracies of the worst, the median and the best seed."""
        return min(self.accuracies), self.accuracies[self.shown], max(self.accuracies)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON, with the parameters of the network of median accuracy."""
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
class XorResult:
    """Results of all methods."""

    settings: XorSettings
    outcomes: tuple[XorOutcome, ...]
    seconds: float

    def __getitem__(self, name: str) -> XorOutcome:
        return next(outcome for outcome in self.outcomes if outcome.method.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
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


def run(settings: XorSettings | None = None, progress: Callable[[int, int], None] | None = None) -> XorResult:
    """Train every method from every seed and test which networks solve the task.

    Args:
        settings: Training settings; by default the paper's.
        progress: Called after every epoch with the number of epochs done and the total.
    """
    settings = XorSettings() if settings is None else settings
    began = time.perf_counter()
    with _one_thread():
        networks, points = begin(settings)
        train(networks, points, settings, progress)
        outcomes = tuple(_outcome(networks, points, index) for index in range(len(METHODS)))
    return XorResult(settings, outcomes, time.perf_counter() - began)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread; steps this small are slower with synchronisation between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def begin(settings: XorSettings) -> tuple[XorNetworks, Tensor]:
    """Untrained networks, all seeds of METHODS[0] first, and the training points of each seed (2, points, seeds)."""
    width = max(method.neurons for method in METHODS)
    draws = [_draw(seed, settings.points, width) for seed in range(settings.seeds)]
    points, neurons, offset = (torch.stack(parts, -1) for parts in zip(*draws, strict=True))
    starts = [_start(method, neurons, offset, settings.start) for method in METHODS]
    neurons, offset, learned = (torch.cat(parts, -1) for parts in zip(*starts, strict=True))
    first = [method.gelu for method in METHODS].index(True) * settings.seeds
    phased = slice(first, first + settings.seeds)
    return XorNetworks(neurons, offset, learned, phased=phased, sharpness=settings.sharpness), points


def _draw(seed: int, points: int, neurons: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the points of a seed, its neuron parameters and its offset, all uniform in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    square = torch.rand(2, points, generator=generator) * 2 - 1
    hidden = torch.rand(6, neurons, generator=generator) * 2 - 1
    return square, hidden, torch.rand((), generator=generator) * 2 - 1


def _start(method: XorMethod, neurons: Tensor, offset: Tensor, start: str) -> tuple[Tensor, Tensor, Tensor]:
    """Initial neurons, offset and mask of learned parameters of one method, from draws in [-1, 1)."""
    neurons, learned = neurons.clone(), torch.ones_like(neurons)
    # As in nn.Linear: uniform within 1 / sqrt(inputs).
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
    networks: XorNetworks, points: Tensor, settings: XorSettings, progress: Callable[[int, int], None] | None = None
) -> None:
    """Train the networks in place, with the points shuffled in every epoch."""
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
    """Checkerboard labels of points (2, ...): 1.0 where the signs of the two coordinates differ."""
    return ((points[0] >= 0) != (points[1] >= 0)).to(points.dtype)


def grid(side: int = GRID) -> Tensor:
    """Centres of the side x side cells of the square, (2, side^2, 1), row by row; none on an axis if side is even."""
    centres = (torch.arange(side) * 2 + 1) / side - 1
    x2, x1 = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x1, x2]).view(2, -1, 1)


def accuracies(networks: XorNetworks) -> Tensor:
    """Share of the grid that each network labels correctly."""
    points = grid()
    return ((networks.forward(points).logits > 0) == (label(points) > 0)).double().mean(0)


def _outcome(networks: XorNetworks, points: Tensor, index: int) -> XorOutcome:
    seeds = points.shape[-1]
    own = networks.select(slice(index * seeds, (index + 1) * seeds))
    shares = accuracies(own)
    shown = int(shares.median(0).indices)
    values = tuple(round(share, 6) for share in shares.tolist())
    return XorOutcome(METHODS[index], values, shown, own.select(slice(shown, shown + 1)), points[..., shown])
