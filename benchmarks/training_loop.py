"""A training step of the small CIFAR-100 recipe against a bare PyTorch loop on the same plain network.

    python benchmarks/training_loop.py            # a few minutes on two cores
    python benchmarks/training_loop.py --json
    python benchmarks/training_loop.py --threads 1 --rounds 3

The bare loop has its images ready as floats and does only forward, cross-entropy, backward and SGD, and with a teacher
also the forward of a second plain network and the KL divergence. Ours also crops, flips, jitters and normalises the
images, schedules the learning rate and accumulates loss and accuracy. `plain` is the plain network; the others are the
phases of the recipe at 1.25% of the gates, each compared with the bare loop, with a teacher if the phase has one. All
take turns in one process, some steps at a time, so that each round sees the same load. A ratio is the median over the
rounds of ours / bare within the round, by wall time and by CPU time, which load on the machine disturbs less. `recipe`
is the mean of the ratios of its phases, weighted by their epochs. The script exits with 1 if `recipe` or `plain`
exceeds the limit by wall time; a single phase may exceed it.

The images are random, which does not affect the time.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric

from deepshare import plan
from deepshare.data import ImageSet, batches
from deepshare.methods.base import Method
from deepshare.methods.deepshare import DeepShare
from deepshare.training.build import gelu_network, lay_out, layout_of, plain_network
from deepshare.training.data_source import DataSource, transforms
from deepshare.training.loop import PhaseContext, TrainContext, train_epoch
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.reporter import Reporter

LIMIT = 1.25


@dataclass(frozen=True)
class Row:
    """One phase; wall and processor are ratios to the bare loop with or without a teacher, as the phase has one."""

    phase: str
    teacher: bool
    seconds: float
    bare_seconds: float
    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps in each round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="one step of each, once: to see that it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.steps = 1, 1
    torch.set_num_threads(options.threads)
    recipe = load_recipe("cifar100-small")
    rows = measure(recipe, options.rounds, options.steps, 8 if options.tiny else 128)
    ratios = {"plain": rows[0].wall, "recipe": weighted(recipe, rows)}
    if options.json:
        result = {"limit": LIMIT, "threads": options.threads, **ratios, "rows": [asdict(row) for row in rows]}
        print(json.dumps(result, indent=1))
    else:
        show(rows, ratios)
    raise SystemExit(max(ratios.values()) > LIMIT and not options.tiny)


def weighted(recipe: Recipe, rows: list[Row]) -> float:
    """The ratio over all epochs of the result."""
    parts = [(row.wall, recipe.phases[row.phase].epochs) for row in rows if row.teacher]
    return sum(ratio * epochs for ratio, epochs in parts) / sum(epochs for _, epochs in parts)


def show(rows: list[Row], ratios: dict[str, float]) -> None:
    print(f"{'phase':>10} {'teacher':>8} {'ms a step':>10} {'bare':>6} {'wall':>6} {'processor':>10}")
    for row in rows:
        said = f"{row.seconds * 1e3:10.0f} {row.bare_seconds * 1e3:6.0f} {row.wall:6.2f} {row.processor:10.2f}"
        print(f"{row.phase:>10} {'yes' if row.teacher else 'no':>8} {said}")
    print(f"plain {ratios['plain']:.2f}, recipe {ratios['recipe']:.2f}; limit {LIMIT}")


def measure(recipe: Recipe, rounds: int, steps: int, batch: int) -> list[Row]:
    images = random_images(batch * steps)
    bare = [bare_loop(recipe, images, batch, with_teacher=teacher) for teacher in (False, True)]
    ours = {
        (name, teacher): our_loop(recipe, images, batch, name, teacher)
        for name, teacher in (
            ("plain", False),
            ("finetune", False),
            ("gelu", True),
            ("switch", True),
            ("finetune", True),
        )
    }
    loops: list[Callable[[], None]] = [*bare, *ours.values()]
    for loop in loops:
        loop()
    times = [[timed(loop, steps) for loop in loops] for _ in range(rounds)]
    rows = []
    for place, (name, teacher) in enumerate(ours, len(bare)):
        wall = statistics.median(turn[place][0] / turn[teacher][0] for turn in times)
        processor = statistics.median(turn[place][1] / turn[teacher][1] for turn in times)
        seconds, bare_seconds = (statistics.median(turn[index][0] for turn in times) for index in (place, teacher))
        rows.append(Row(name, teacher, seconds, bare_seconds, wall, processor))
    return rows


def timed(loop: Callable[[], None], steps: int) -> tuple[float, float]:
    start = time.perf_counter(), time.process_time()
    loop()
    return (time.perf_counter() - start[0]) / steps, (time.process_time() - start[1]) / steps


def random_images(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 100, (count,), generator=generator)
    return ImageSet("random", pixels, labels, tuple(map(str, range(100))), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def bare_loop(recipe: Recipe, images: ImageSet, batch: int, *, with_teacher: bool) -> Callable[[], None]:
    model, teacher = plain_network(recipe, "plain").train(), plain_network(recipe, "teacher").eval()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    ready = list(batches(images, batch))

    def run() -> None:
        for x, y in ready:
            optimiser.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if with_teacher:
                with torch.no_grad():
                    target = F.softmax(teacher(x) / 4, 1)
                loss = loss + 16 * F.kl_div(F.log_softmax(logits / 4, 1), target, reduction="batchmean")
            loss.backward()
            optimiser.step()

    return run


def our_loop(recipe: Recipe, images: ImageSet, batch: int, name: str, with_teacher: bool) -> Callable[[], None]:
    """The loop of a phase as `fit` sets it up."""
    fabric = Fabric(accelerator="cpu", devices=1)
    data = DataSource(images, images, None, *transforms(images, recipe.data))
    model, teacher, method = plain_network(recipe, "plain"), None, Method()
    if name != "plain":
        method = DeepShare(plan(model, (3, 32, 32), "1.25%"))
        gelu = gelu_network(model, (3, 32, 32))
        model = method.convert(model)
        method.on_epoch_start(model, name, 2, 6)
        if with_teacher:
            # The GELU network teaches the first phase; the shared network with soft gates teaches the others.
            teacher = gelu if name == "gelu" else copy.deepcopy(model)
            method.on_epoch_start(teacher, "gelu", 0, 1)
            lay_out(teacher, layout_of(teacher, (3, 32, 32))).eval().requires_grad_(False)
    phase = getattr(recipe, name).model_copy(update={"batch": batch, "distill": 1.0 if with_teacher else 0.0})
    layout = layout_of(model, (3, 32, 32))
    lay_out(model, layout)
    optimiser = method.optimiser(model, lr=phase.lr, momentum=phase.momentum, weight_decay=phase.weight_decay)
    module, wrapped = fabric.setup(model, optimiser)
    work = PhaseContext(name, phase, 0, model, module, wrapped, method, teacher, layout)
    context = TrainContext(recipe, fabric, data, Reporter())
    return lambda: ignore(train_epoch(context, work, 0))


def ignore(_: object) -> None:
    """Make a loop of a function that returns something."""


if __name__ == "__main__":
    main()
