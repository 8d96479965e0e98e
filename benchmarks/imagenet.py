"""Networks of ImageNet's size with their max-pooling, on gateshare: ResNet-18, ResNet-50 and VGG-16 at 224x224.

    python benchmarks/imagenet.py                                     # nine rows at 1% of the gates, one with all
    python benchmarks/imagenet.py --networks resnet50 --pooling shared --json
    python benchmarks/imagenet.py --networks resnet50 --pooling shared --groups stage
    python benchmarks/imagenet.py --without-avx512                    # as on a processor that has AVX2 only
    python benchmarks/imagenet.py --tiny                              # ResNet-18 at 32x32, in seconds

torchvision's networks with random weights, and BatchNorm with the statistics of the pictures and of the synthetic ones
that ranges are measured on, as training would leave it. Server, client and dealer are processes on this machine, one
thread each. Max-pooling is exact (its comparisons come on top of the budget), shared (they come from it) or replaced by
averages. The row "all" has every ReLU and every comparison of max-pooling. Logits reach about 10, as after training.
Random networks with large alphas are chaotic: a picture rounded to 16 bits has other logits in the clear. So alphas are
small here, which changes neither bytes nor times.

A run fails unless comparisons, bytes and round trips online are those of the prediction, logits are near those in the
clear, and no process takes more than 8 GB. Logits differ by the server's noise, of deviation 2^-6.8, and by rounding,
which flips the gates of numbers next to zero: the bound is 0.06 and 5% of the largest logit. Online is from the picture
to the logits; "layers" is the part in which the server multiplies weights, "clear" torch's time for the network, and
"load" the number of processes that wanted a core: times are those of a quiet machine where it is below the cores.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import avx512
import torch
from PIL import Image
from torch import Tensor, nn

from deepshare import find_sites, plan, share, zoo
from deepshare.data.images import About
from deepshare.private.api import run
from deepshare.private.cost import Cost, predict
from deepshare.private.engines.gateshare.fixedpoint import synthetic
from deepshare.private.ir.trace import translate
from deepshare.sharing.piecewise import MaxPool, rewritten
from deepshare.sharing.planning import Grouping

NETWORKS = ("resnet18", "resnet50", "vgg16_bn")
POOLINGS: tuple[MaxPool, ...] = ("exact", "shared", "avg")
ROLES = ("server", "client", "dealer")  # in the order of their start
LINEAR = ("Convolution", "Linear")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# One prototype channel in each group takes 35,525 gates, 1.54%.
LEAST = {("resnet18", "shared"): "1.6%"}
LARGEST_NOISE, LARGEST_SHARE, LARGEST_PROCESS = 0.06, 0.05, 8e9


@dataclass(frozen=True)
class Row:
    """Figures of one network: seconds, bytes that all parties send, and the largest memory of each process."""

    network: str
    pooling: str
    gates: str
    comparisons: int
    rounds: int
    online: float
    layers: float
    in_the_clear: float
    load: float
    online_bytes: int
    offline: float
    offline_bytes: int
    session: float
    session_bytes: int
    difference: float
    largest_logit: float
    memory: dict[str, int]
    wrong: list[str]
    profile: dict[str, float]
    groups: Grouping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--pooling", nargs="+", choices=[*POOLINGS, "all"], help="by default all of them")
    parser.add_argument("--groups", choices=get_args(Grouping), default="consecutive", help="which sites share gates")
    parser.add_argument("--pictures", type=Path, help="folder of pictures; by default one that comes with matplotlib")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="ResNet-18 at 32x32, with a shared pool and 20%% of the gates"
    )
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    side, budget = (32, "20%") if options.tiny else (224, "1%")
    networks = ["resnet18"] if options.tiny else options.networks
    pictures = read(options.pictures, side)
    rows, table = [], sys.stderr if options.json else sys.stdout
    print(HEADER, file=table)
    for name in networks:
        for pooling in options.pooling or (["shared"] if options.tiny else [*POOLINGS, "all"]):
            if pooling == "all" and name != "resnet18":
                continue  # 12 million comparisons and more
            part = budget if options.tiny else LEAST.get((name, pooling), budget)
            rows.append(measure(name, pooling, pictures, part, options.groups))
            print("\n".join([line(rows[-1]), *rows[-1].wrong]), flush=True, file=table)
    if options.json:
        about = {"side": side, "cores": os.cpu_count(), "capability": torch.backends.cpu.get_cpu_capability()}
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}))
    if any(row.wrong for row in rows):
        raise SystemExit(1)


def read(folder: Path | None, side: int) -> Tensor:
    """Up to eight pictures of a folder, cropped and scaled."""
    if folder is None:
        import matplotlib

        paths = [Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"]
    else:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[:8]
    if not paths:
        raise SystemExit(f"{folder} has no pictures: give a folder of JPEG or PNG files with --pictures")
    pictures = About(size=(3, side, side), mean=MEAN, std=STD, classes=()).read(paths, fit=True)
    with Image.open(paths[0]) as first:
        print(f"{len(paths)} pictures, {paths[0].name} of {first.width}x{first.height} pixels first", file=sys.stderr)
    return pictures


def measure(name: str, pooling: str, pictures: Tensor, budget: str, groups: Grouping) -> Row:
    """Run one network on the first picture, and compare everything with what is predicted."""
    size = tuple(pictures.shape[1:])
    network = make(name, pooling, pictures, budget, groups)
    picture = pictures[:1]
    started = time.perf_counter()
    with torch.no_grad():
        network(picture)
    in_the_clear = time.perf_counter() - started
    program = translate(network, size, compare=False)
    expected = program.evaluate(picture)
    predicted = predict(program, size, "gateshare")
    with PeakMemory() as peak:
        result = run(program, picture, "gateshare")
    cost = result.cost
    difference, largest = float((result.logits - expected).abs().max()), float(expected.abs().max())
    wrong = differing(cost, predicted)
    if difference > LARGEST_NOISE + LARGEST_SHARE * largest:
        wrong.append(f"a logit of up to {largest:.2f} is {difference:.3f} off")
    if max(peak.bytes.values()) > LARGEST_PROCESS:
        wrong.append(f"a process takes {max(peak.bytes.values()) / 1e9:.1f} GB")
    profile: dict[str, float] = {}
    for layer in cost.layers:
        profile[layer.kind] = profile.get(layer.kind, 0.0) + layer.part.seconds
    return Row(
        name,
        pooling,
        "all" if pooling == "all" else budget,
        cost.online.comparisons,
        cost.online.rounds,
        cost.seconds,
        sum(profile.get(kind, 0.0) for kind in LINEAR),
        in_the_clear,
        os.getloadavg()[0],
        sent(cost.online),
        cost.offline.seconds,
        sent(cost.offline),
        cost.session.seconds,
        sent(cost.session),
        difference,
        largest,
        peak.bytes,
        wrong,
        {kind: round(seconds, 3) for kind, seconds in profile.items()},
        groups,
    )


def make(name: str, pooling: str, pictures: Tensor, budget: str, groups: Grouping) -> nn.Module:
    """Build a network, with the gates of a plan unless all are kept."""
    torch.manual_seed(0)
    model = zoo.build(f"torchvision:{name}", num_classes=1000)
    size, relus = tuple(pictures.shape[1:]), find_sites(model, tuple(pictures.shape[1:])).neurons
    kind: MaxPool = "exact" if pooling == "all" else pooling  # type: ignore[assignment]
    model = rewritten(model, maxpool=kind)
    if pooling != "all":
        gates = int(relus * float(budget.rstrip("%")) / 100)
        model = share(model, plan(model, size, gates, groups=groups, exact_pools=pooling == "exact"))
        for key, value in model.named_parameters():
            if key.endswith((".alpha", ".beta")):
                nn.init.uniform_(value, *((-0.1, 0.1) if key.endswith("alpha") else (0.8, 1.0)))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches
    with torch.no_grad():
        model.train()(torch.cat([pictures, synthetic(size).float()]))
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        last.weight *= 10 / model.eval()(pictures[:1]).abs().max()
    return model


def differing(cost: Cost, predicted: Cost) -> list[str]:
    """What was measured and is not what was predicted."""
    counts = ("comparisons", "rounds", "server_bytes", "client_bytes")
    pairs = {what: (getattr(cost.online, what), getattr(predicted.online, what)) for what in counts}
    return [f"{one:,} {what}, predicted {other:,}" for what, (one, other) in pairs.items() if one != other]


class PeakMemory:
    """Largest resident memory of the processes that start in a block, by role, in bytes."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._over = threading.Event()

    def __enter__(self) -> "PeakMemory":
        self._before = set(children())
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            found = [process for process in children() if process not in self._before]
            for role, process in zip(ROLES, found, strict=False):
                self.bytes[role] = peak_of(process) or self.bytes.get(role, 0)


def children() -> list[int]:
    """Processes that this one has started, the oldest first."""
    tasks = Path("/proc/self/task").glob("*/children")
    return sorted(int(process) for task in tasks for process in task.read_text().split())


def peak_of(process: int) -> int:
    """Largest resident memory of a process so far; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM")), 0)


def sent(part: Any) -> int:
    """Bytes of all parties."""
    return int(part.server_bytes + part.client_bytes + part.dealer_bytes)


COLUMNS: Sequence[tuple[str, int]] = (
    ("", 10), ("pooling", 8), ("comparisons", 12), ("rounds", 7), ("online", 9), ("layers", 9), ("clear", 8),
    ("load", 6), ("MB", 8), ("offline", 9), ("MB", 8), ("session", 9), ("MB", 8), ("off by", 8), ("of", 7),
    ("GB server", 10), ("client", 7), ("dealer", 7),
)  # fmt: skip
HEADER = "".join(f"{title:>{width}}" for title, width in COLUMNS)


def line(row: Row) -> str:
    """One row of the table."""
    cells = [
        row.network, row.pooling, f"{row.comparisons:,}", f"{row.rounds}", f"{row.online:.2f}s", f"{row.layers:.2f}s",
        f"{row.in_the_clear:.2f}s", f"{row.load:.1f}", f"{row.online_bytes / 1e6:.1f}", f"{row.offline:.1f}s",
        f"{row.offline_bytes / 1e6:.0f}", f"{row.session:.1f}s", f"{row.session_bytes / 1e6:.0f}",
        f"{row.difference:.3f}", f"{row.largest_logit:.2f}",
        *(f"{row.memory.get(role, 0) / 1e9:.2f}" for role in ROLES),
    ]  # fmt: skip
    return "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


if __name__ == "__main__":
    main()
