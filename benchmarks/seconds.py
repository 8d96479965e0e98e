"""Seconds that `deepshare plan --cost gateshare` estimates, beside those measured: all parties on this machine.

    python benchmarks/seconds.py             # five networks, up to ResNet-50 at 224x224: two minutes
    python benchmarks/seconds.py --tiny      # one small network, in seconds

One calibration serves all networks. A network is measured as the median of `--times` private runs. With --within 0.3
the benchmark fails where an estimate is off by more; that is of use on a quiet machine alone.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn

from deepshare import plan, share, zoo
from deepshare.private.api import run
from deepshare.private.engines.gateshare.timing import Calibration, calibrate
from deepshare.private.ir.trace import translate
from deepshare.sharing.piecewise import rewritten
from deepshare.text import table

NETWORKS: dict[str, tuple[str, dict[str, int], int, int | None]] = {
    "width 16, 2,000 gates": ("resnet18", {"width": 16}, 32, 2_000),
    "width 16, all ReLUs": ("resnet18", {"width": 16}, 32, None),
    "width 64, 6,000 gates": ("resnet18", {"width": 64}, 32, 6_000),
    "width 64, all ReLUs": ("resnet18", {"width": 64}, 32, None),
    "ResNet-50 at 224x224, 96,000 gates": ("torchvision:resnet50", {}, 224, 96_000),
}


@dataclass(frozen=True)
class TimedRow:
    """Seconds of one network, and how many processes wanted a core."""

    network: str
    estimated_online: float
    online: float
    estimated_before: float
    before: float
    load: float

    @property
    def off(self) -> float:
        """Relative error of the worse of the two estimates."""
        pairs = ((self.estimated_online, self.online), (self.estimated_before, self.before))
        return max(abs(estimated / measured - 1) for estimated, measured in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--within", type=float, help="fail if an estimate is off by more than this share")
    parser.add_argument("--tiny", action="store_true", help="one network, once")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    calibration = calibrate()
    seconds = time.perf_counter() - began
    names = list(NETWORKS)[:1] if options.tiny else list(NETWORKS)
    rows = [compare(name, calibration, 1 if options.tiny else options.times) for name in names]
    if options.json:
        print(json.dumps({"calibration": seconds, "cores": os.cpu_count(), "rows": [asdict(row) for row in rows]}))
    else:
        print(f"calibrated in {seconds:.1f} s")
        header = ("", "online", "estimated", "before the image", "estimated", "off by", "load")
        print(table(header, [cells(row) for row in rows], "<>>>>>>"))
    if options.within is not None and any(row.off > options.within for row in rows):
        raise SystemExit(1)


def compare(name: str, calibration: Calibration, times: int) -> TimedRow:
    """Estimate the seconds of a network, and measure them."""
    network, arguments, side, gates = NETWORKS[name]
    size = (3, side, side)
    torch.manual_seed(0)
    model: nn.Module = rewritten(zoo.build(network, num_classes=100, **arguments), maxpool="avg").eval()
    if gates is not None:
        model = share(model, plan(model, size, gates)).eval()
    program = translate(model, size, compare=False)
    online, before = calibration.seconds(program)
    costs = [run(program, torch.zeros(1, *size), "gateshare").cost for _ in range(times)]
    return TimedRow(
        name,
        online,
        statistics.median(cost.seconds for cost in costs),
        before,
        statistics.median(cost.offline.seconds for cost in costs),
        os.getloadavg()[0],
    )


def cells(row: TimedRow) -> tuple[str, ...]:
    """One row of the table."""
    times = (row.online, row.estimated_online, row.before, row.estimated_before)
    return (row.network, *(f"{seconds:.3f} s" for seconds in times), f"{row.off:.0%}", f"{row.load:.1f}")


if __name__ == "__main__":
    main()
