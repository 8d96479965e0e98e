"""Seconds of gateshare on this machine, estimated from a short calibration.

Five small networks are run privately, all parties on this machine, and give the time of what networks are made of:
messages, gates, and neurons of small and of large tensors, before the image and with it, and of what is done once.
Most of a neuron's time is the first write to memory, so parties of a calibration begin with none: each is a process of
its own, forked from one that has imported what they need. Products take different times for one multiplication, by
their shapes, so those of the network itself are timed, each shape once.
"""

import gc
import json
import math
import multiprocessing
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import opening_bytes
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.main import run
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import ProductTrial, ProtocolStep
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.runtime.party import free_ports
from deepshare.sharing.convert import share
from deepshare.sharing.planning import plan

LONG = 0.05  # seconds of a product that is timed twice
SMALL, LARGE = 1 << 15, 1 << 19  # elements of tensors whose neurons take the time of small and of large ones


@dataclass(frozen=True)
class Example:
    """A network that is run to calibrate.

    Attributes:
        layers: Channels, side of kernels and stride of convolutions with a ReLU each.
        side: Of its images.
        gates: Its budget; None for all.
        times: How often it is run.
    """

    layers: tuple[tuple[int, int, int], ...]
    side: int
    gates: int | None
    times: int

    @property
    def size(self) -> tuple[int, int, int]:
        """Of its images."""
        return 3, self.side, self.side

    def program(self) -> Program:
        """The network."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = nn.Sequential(*self._modules()).eval()
            if self.gates is not None:
                model = share(model, plan(model, self.size, self.gates)).eval()
            return translate(model, self.size, compare=False)

    def _modules(self) -> Iterable[nn.Module]:
        channels = self.size[0]
        for width, kernel, stride in self.layers:
            yield nn.Conv2d(channels, width, kernel, stride, kernel // 2)
            yield nn.ReLU()
            channels = width
        yield nn.AdaptiveAvgPool2d(1)
        yield nn.Flatten()
        yield nn.Linear(channels, 10)


_MANY = tuple((width, 3, 2 if first else 1) for width in (4, 8, 16, 32) for first in (True, False, False, False, False))
_SEVERAL = ((16, 3, 1), (16, 3, 1), (32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
EXAMPLES = (
    Example(layers=((4, 3, 1),) * 2, side=16, gates=512, times=3),  # what is done once
    Example(layers=_MANY, side=16, gates=400, times=3),  # messages
    Example(layers=_SEVERAL, side=56, gates=4_000, times=3),  # neurons of small tensors
    Example(layers=_SEVERAL, side=56, gates=None, times=3),  # gates
    Example(layers=((64, 1, 1),) * 2, side=112, gates=13_000, times=2),  # neurons of large tensors
)


@dataclass(frozen=True)
class Sizes:
    """Sizes that the time of a network depends on, its products aside.

    Attributes:
        messages: Steps in which the client takes part.
        gates: Comparisons.
        small: Neurons in small tensors.
        large: Neurons in large ones; those of a tensor in between are a part of both.
    """

    messages: int
    gates: int
    small: float
    large: float

    @classmethod
    def of(cls, steps: Schedule) -> "Sizes":
        """Those of one image."""
        gates = sum(step.online_cost(1).comparisons for step in steps.steps)
        small = large = 0.0
        for step in steps.steps:
            part = math.log(max(step.elements, SMALL) / SMALL) / math.log(LARGE / SMALL)
            large += min(part, 1.0) * step.elements * _weight(step)
            small += (1 - min(part, 1.0)) * step.elements * _weight(step)
        return cls(sum(step.interactive for step in steps.steps), gates, small, large)

    @property
    def values(self) -> tuple[float, ...]:
        """One, for what is done once, and all of them."""
        return 1.0, self.messages, self.gates, self.small, self.large


def _weight(step: ProtocolStep) -> float:
    """Time of an element of a step compared to that of a neuron with a gate: roughly, as measured."""
    return 1.0 if step.interactive else 0.25 if step.product_trials() else 0.08


@dataclass(frozen=True)
class Rates:
    """Seconds of each of the values of `Sizes`."""

    values: tuple[float, ...]

    def seconds(self, sizes: Sizes) -> float:
        """Their time for a network."""
        return sum(rate * size for rate, size in zip(self.values, sizes.values, strict=True))


class ProductTimer:
    """Times products, each shape once."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[float, float]] = {}

    def seconds(self, steps: Schedule) -> tuple[float, float]:
        """Seconds of all products of a network, online and before the image."""
        trials = [trial for step in steps.steps for trial in step.product_trials()]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as parties have
        try:
            found = [self._trial(trial) for trial in trials]
        finally:
            torch.set_num_threads(threads)
        return sum(online for online, _ in found), sum(before for _, before in found)

    def _trial(self, trial: ProductTrial) -> tuple[float, float]:
        if trial.key not in self._known:
            x, (online, before) = torch.randint(-(1 << 62), 1 << 62, (1, *trial.takes)), trial.prepare()
            times = {product: _seconds(product, x) for product in dict.fromkeys((online, *before))}
            self._known[trial.key] = times[online], sum(times[product] for product in before)
        return self._known[trial.key]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Seconds that gateshare takes on this machine.

    Attributes:
        online: Rates with the image.
        offline: Rates before the image.
        products: Times the products of networks.
    """

    online: Rates
    offline: Rates
    products: ProductTimer = field(default_factory=ProductTimer)

    def seconds(self, program: Program) -> tuple[float, float]:
        """Seconds of one image, online and before it, all parties on this machine, if no lot has to be replaced."""
        steps = _usual(program)
        sizes, (online, before) = Sizes.of(steps), self.products.seconds(steps)
        return online + self.online.seconds(sizes), before + self.offline.seconds(sizes)

    def crossing(self, program: Program) -> Part:
        """The client's lot and its openings, after which it waits for the server twice."""
        steps = _usual(program)
        return Part(client_bytes=opening_bytes(steps), dealer_bytes=steps.lot_bytes(1, "client"), rounds=2)


def calibrate() -> Calibration:
    """Run small networks privately, in a few seconds."""
    programs = [example.program() for example in EXAMPLES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no threads that a fork would lose
    command = [sys.executable, "-P", "-m", "deepshare.private.engines.gateshare.timing"]
    process = subprocess.run(command, env=environment, input=pickle.dumps(programs), capture_output=True, check=False)
    if process.returncode:
        words = process.stderr.decode(errors="replace").split("\n")
        said = next((word for word in reversed(words) if word.strip()), f"exit code {process.returncode}")
        raise EngineError(f"the calibration failed ({said.strip()}): give --no-seconds, or try again")
    return calibration_of(programs, json.loads(process.stdout))


def calibration_of(programs: Sequence[Program], measured: Sequence[tuple[float, float]]) -> Calibration:
    """Find rates.

    Args:
        programs: The examples.
        measured: Seconds of each, online and before the image.
    """
    products, steps = ProductTimer(), [_usual(program) for program in programs]
    rest = np.array(measured) - np.array([products.seconds(one) for one in steps])
    rates = np.linalg.solve(np.array([Sizes.of(one).values for one in steps]), rest).clip(0.0)
    online, offline = (Rates(tuple(map(float, column))) for column in rates.T)
    return Calibration(online, offline, products)


def before_image(outcomes: "dict[Role, Outcome]") -> float:
    """Seconds of work before the image: the client's, and the dealer's, which deals while the session is set up."""
    return outcomes["client"].offline.seconds + outcomes["dealer"].offline.seconds


def lots_dealt(outcomes: "dict[Role, Outcome]", program: Program) -> int:
    """Number of lots dealt for one image: more than one where some had to be replaced."""
    steps = _usual(program)
    lot = steps.lot_bytes(1, "server") + steps.lot_bytes(1, "client")
    # About, as keys depend on the range of numbers.
    return round(outcomes["dealer"].offline.dealer_bytes / lot)


def _seconds(product: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The shortest of three tries, or of two that are long."""
    found: list[float] = []
    while len(found) < (2 if found and found[0] > LONG else 3):
        began = time.perf_counter()
        product(x)
        found.append(time.perf_counter() - began)
    return min(found)


def _usual(program: Program) -> Schedule:
    return schedule(program, NumberFormat.usual(program))


def _measure(program: Program, times: int) -> tuple[float, float]:
    """Seconds of a network, online and before the image: the median of so many runs."""
    found: list[tuple[float, float]] = []
    while len(found) < times:
        outcomes = _run_forked(program, torch.zeros(1, *program.input_size))
        if lots_dealt(outcomes, program) == 1:
            found.append((max(outcome.seconds for outcome in outcomes.values()), before_image(outcomes)))
    return statistics.median_low(online for online, _ in found), statistics.median_low(before for _, before in found)


def _run_forked(program: Program, image: Tensor) -> dict[Role, Outcome]:
    """Run all parties as `party.run_here` does, in processes that begin with what this one has imported."""
    roles: tuple[Role, ...] = get_args(Role)
    ports, outline = free_ports("127.0.0.1", len(roles)), program.outline()
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(roles, ports, strict=True)}
    tasks = (
        Task(
            role=role,
            program=program if role == "server" else outline,
            addresses=addresses,
            images=image if role == "client" else None,
            count=1,
            options={},
        )
        for role in roles
    )
    with ProcessPoolExecutor(len(roles), multiprocessing.get_context("fork")) as parties:
        futures = {task.role: parties.submit(_work, task) for task in tasks}
        return {role: future.result() for role, future in futures.items()}


def _work(task: Task) -> Outcome:
    gc.collect()  # writes to all objects, so that no page is copied later, as in a process that was not forked
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    return run(task, lambda: None)


if __name__ == "__main__":
    given = pickle.load(sys.stdin.buffer)
    seconds = [_measure(program, example.times) for program, example in zip(given, EXAMPLES, strict=True)]
    sys.stdout.write(json.dumps(seconds))
