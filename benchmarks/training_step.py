"""One training step of the paper's ResNet-18 with 6,000 shared gates against the same network with nn.ReLU.

    python benchmarks/training_step.py            # eager and compiled, batch 128: ten minutes on two cores
    python benchmarks/training_step.py --quick    # eager only, batch 32: one minute
    python benchmarks/training_step.py --json

A step is forward, cross-entropy, backward and SGD with momentum, at 32x32 with 100 classes. All networks take turns in
one process, so that each round sees the same load. A time ratio is the median over rounds of shared / plain within the
round, by wall time and by CPU time (which load on the machine disturbs less, with --threads 1). Peak memory has no
noise: the tensors that exist when a step starts (parameters, momentum, the batch) plus the maximum running sum of the
allocations and releases that the profiler records during the step.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from deepshare import plan, share
from deepshare.sharing.gates import set_progress
from deepshare.zoo import resnet18

FULL = 64, 6_000  # width and gates
TINY = 4, 2_000
PHASES = {"soft": 0.0, "mixed": 0.5, "hard": 1.0}
LIMITS = {"eager": (1.25, 1.4), "compiled": (1.1, 1.15)}


@dataclass(frozen=True)
class Row:
    """One phase in one mode; time, processor and memory are ratios to the plain network in the same mode."""

    mode: str
    phase: str
    seconds: float
    plain_seconds: float
    time: float
    processor: float
    megabytes: float
    plain_megabytes: float
    memory: float

    @property
    def holds(self) -> bool:
        """Return True if time and memory are within the project's limits."""
        time_limit, memory_limit = LIMITS[self.mode]
        return self.time <= time_limit and self.memory <= memory_limit


class Step:
    """A network with its optimizer, ready to take the same step again and again."""

    def __init__(self, network: nn.Module, images: Tensor, labels: Tensor, compiled: bool) -> None:
        self.network, self.images, self.labels = network, images, labels
        self.run: Callable[[Tensor], Tensor] = torch.compile(network, fullgraph=True) if compiled else network
        self.optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-3)

    def __call__(self) -> None:
        """Take the step."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.run(self.images), self.labels).backward()
        self.optimizer.step()

    def seconds(self) -> tuple[float, float]:
        """Take the step by two clocks: the wall's and the processor's."""
        start = time.perf_counter(), time.process_time()
        self()
        return time.perf_counter() - start[0], time.process_time() - start[1]

    def peak(self) -> int:
        """Bytes of tensors at the worst moment of the step."""
        self.optimizer.zero_grad()
        state = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        kept = (self.images, self.labels, *self.network.parameters(), *self.network.buffers(), *state)
        live = worst = sum(v.untyped_storage().nbytes() for v in kept)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self()
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            worst = max(worst, live)
        return worst


def networks(width: int, gates: int) -> dict[str, nn.Module]:
    """The plain network and one shared copy of it per phase."""
    torch.manual_seed(0)
    plain = resnet18(num_classes=100, width=width)
    planned = plan(plain, (3, 32, 32), gates)
    if planned.gates != gates:
        raise SystemExit(f"the plan has {planned.gates} gates instead of {gates}")
    found: dict[str, nn.Module] = {"plain": plain}
    for phase, progress in PHASES.items():
        found[phase] = share(plain, planned, start="uniform")
        set_progress(found[phase], progress)
    return found


def measure(mode: str, batch: int, rounds: int, width: int, gates: int) -> list[Row]:
    """Time and weigh all networks in one mode."""
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))
    steps = {
        name: Step(network, images, labels, mode == "compiled") for name, network in networks(width, gates).items()
    }
    for step in steps.values():
        step()
        step()
    memory = {name: step.peak() for name, step in steps.items()}
    times = [{name: step.seconds() for name, step in steps.items()} for _ in range(rounds)]

    def ratio(phase: str, clock: int) -> float:
        return statistics.median(t[phase][clock] / t["plain"][clock] for t in times)

    return [
        Row(
            mode=mode,
            phase=phase,
            seconds=statistics.median(t[phase][0] for t in times),
            plain_seconds=statistics.median(t["plain"][0] for t in times),
            time=ratio(phase, 0),
            processor=ratio(phase, 1),
            megabytes=memory[phase] / 1e6,
            plain_megabytes=memory["plain"] / 1e6,
            memory=memory[phase] / memory["plain"],
        )
        for phase in PHASES
    ]


def show(rows: list[Row]) -> None:
    """Print a table."""
    print("                     time of a step                            peak memory")
    print("mode      gates    shared    ReLU   wall limit processor    shared    ReLU  ratio limit")
    for row in rows:
        time_limit, memory_limit = LIMITS[row.mode]
        took = f"{row.seconds:6.2f} s {row.plain_seconds:5.2f} s {row.time:6.3f} {time_limit:5.2f} {row.processor:9.3f}"
        held = f"{row.megabytes:6.0f} MB {row.plain_megabytes:4.0f} MB {row.memory:6.3f} {memory_limit:5.2f}"
        print(f"{row.mode:9} {row.phase:6} {took}  {held}{'' if row.holds else '  over the limit'}")


def main() -> None:
    """Measure as asked on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, help="images in a step (128; 32 with --quick)")
    parser.add_argument("--rounds", type=int, help="timed rounds (7; 3 with --quick)")
    parser.add_argument("--modes", nargs="+", choices=list(LIMITS), help="both; eager only with --quick")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="a minute instead of ten")
    parser.add_argument("--tiny", action="store_true", help="width 4, two images, once: to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would announce each start and stop
    batch, rounds = chosen.batch or (32 if chosen.quick else 128), chosen.rounds or (3 if chosen.quick else 7)
    if chosen.tiny:
        batch, rounds = 2, 1
    modes = chosen.modes or (["eager"] if chosen.quick or chosen.tiny else list(LIMITS))
    rows = [row for mode in modes for row in measure(mode, batch, rounds, *(TINY if chosen.tiny else FULL))]
    if chosen.json:
        result = [{**asdict(row), "holds": row.holds} for row in rows]
        print(
            json.dumps(
                {
                    "batch": batch,
                    "threads": chosen.threads,
                    "gates": (TINY if chosen.tiny else FULL)[1],
                    "rows": result,
                },
                indent=2,
            )
        )
    else:
        show(rows)
    if not chosen.tiny and not all(
        row.holds for row in rows if row.phase != "mixed"
    ):  # the limits are for the long phases
        raise SystemExit("a ratio is over its limit")


if __name__ == "__main__":
    main()
