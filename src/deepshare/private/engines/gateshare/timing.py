"""Seconds of gateshare on this machine, estimated from a short calibration.

Two small networks are run privately, all parties on this machine: one with a gate for every neuron, one with few. They
give the time of a gate and of a neuron, before the image and with it. Products take different times for one
multiplication, by their shapes, so those of the network itself are timed, each shape once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import ProductTrial
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.party import run_here
from deepshare.sharing.convert import share
from deepshare.sharing.plan import plan

SIZE, WIDTH, BUDGET = (3, 64, 64), 16, 15_000
LONG = 0.05  # seconds of a product that is timed once


@dataclass(frozen=True)
class Sizes:
    """What the time of a network depends on, its products aside.

    Attributes:
        gates: Comparisons.
        elements: Elements of the results of all steps.
    """

    gates: int
    elements: int

    @classmethod
    def of(cls, steps: Schedule) -> "Sizes":
        """Those of one image."""
        gates = sum(step.online_cost(1).comparisons for step in steps.steps)
        return cls(gates, sum(step.elements for step in steps.steps))


@dataclass(frozen=True)
class Rates:
    """Seconds of a gate, and of all else for each element."""

    gate: float
    element: float

    def seconds(self, sizes: Sizes) -> float:
        """Their time for a network."""
        return self.gate * sizes.gates + self.element * sizes.elements


class ProductTimer:
    """Times products of linear layers: with weights, and with masks of full size."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[float, float]] = {}

    def seconds(self, steps: Schedule) -> tuple[float, float]:
        """Seconds of all products of a network."""
        trials = [trial for step in steps.steps for trial in step.product_trials()]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as parties have
        try:
            found = [self._trial(trial) for trial in trials]
        finally:
            torch.set_num_threads(threads)
        return sum(plain for plain, _ in found), sum(ring for _, ring in found)

    def _trial(self, trial: ProductTrial) -> tuple[float, float]:
        if trial.key not in self._known:
            x, (plain, ring) = torch.randint(-(1 << 62), 1 << 62, (1, *trial.takes)), trial.prepare()
            self._known[trial.key] = _seconds(plain, x), _seconds(ring, x)
        return self._known[trial.key]


@dataclass(frozen=True, eq=False)
class Calibration:
    """How long gateshare takes on this machine.

    Attributes:
        online: Rates with the image.
        offline: Rates before the image.
        products: Times the products of networks.
    """

    online: Rates
    offline: Rates
    products: ProductTimer = field(default_factory=ProductTimer)

    def seconds(self, program: Program) -> tuple[float, float]:
        """Seconds of one image, online and before it, all parties on this machine."""
        steps = _usual(program)
        sizes, (plain, ring) = Sizes.of(steps), self.products.seconds(steps)
        # Before the image dealer and client multiply, one after the other.
        return plain + self.online.seconds(sizes), 2 * ring + self.offline.seconds(sizes)


def calibrate() -> Calibration:
    """Run two small networks privately, in a few seconds."""
    products, measured = ProductTimer(), []
    for budget in (BUDGET, None):
        program = _network(budget)
        measured.append((Sizes.of(_usual(program)), products.seconds(_usual(program)), _run(program)))
    (few, (plain, ring), cheap), (full, _, dear) = measured

    def rates(least: float, most: float, product: float) -> Rates:
        gate = max(most - least, 0.0) / (full.gates - few.gates)
        return Rates(gate, max(least - product - gate * few.gates, 0.0) / few.elements)

    return Calibration(
        rates(cheap[0], dear[0], plain),
        rates(cheap[1], dear[1], 2 * ring),
        products,
    )


def _seconds(product: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The shorter of two tries, or of one that is long."""
    began = time.perf_counter()
    product(x)
    first = time.perf_counter() - began
    if first > LONG:
        return first
    began = time.perf_counter()
    product(x)
    return min(first, time.perf_counter() - began)


def _usual(program: Program) -> Schedule:
    return schedule(program, NumberFormat.usual(program))


def _run(program: Program) -> tuple[float, float]:
    """Seconds online and before the image; of the parties those of the slower."""
    outcomes = run_here(find_engine("gateshare"), program, torch.zeros(1, *SIZE), {}).values()
    return max(outcome.seconds for outcome in outcomes), max(outcome.offline.seconds for outcome in outcomes)


def _network(budget: int | None) -> Program:
    """Six convolutions, with a gate for every neuron or few."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(*_layers()).eval()
        if budget is not None:
            model = share(model, plan(model, SIZE, budget)).eval()
        return translate(model, SIZE, compare=False)


def _layers() -> Iterable[nn.Module]:
    channels = SIZE[0]
    for width, stride in ((WIDTH, 1), (WIDTH, 1), (2 * WIDTH, 2), (2 * WIDTH, 1), (4 * WIDTH, 2), (4 * WIDTH, 1)):
        yield nn.Conv2d(channels, width, 3, stride, 1)
        yield nn.ReLU()
        channels = width
    yield nn.AdaptiveAvgPool2d(1)
    yield nn.Flatten()
    yield nn.Linear(channels, 10)
