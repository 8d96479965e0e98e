"""Seconds that `deepshare plan --cost gateshare` estimates, beside those measured: all parties on this machine.

    python benchmarks/seconds.py             # five networks, up to ResNet-50 at 224x224: two minutes
    python benchmarks/seconds.py --only 224  # ResNet-50 alone
    python benchmarks/seconds.py --link wan  # with a link between the client and the others; as root
    python benchmarks/seconds.py --without-avx512   # as on a processor that has AVX2 only
    python benchmarks/seconds.py --tiny      # one small network, in seconds

One calibration serves all networks. A network is measured as the median of `--times` private runs in which no lot had
to be replaced. Before the image are the client's work and the dealer's, which deals while the session is set up. With
--within 0.3 the benchmark fails where an estimate is off by more; that is of use on a quiet machine alone. A link is
made by a process on this machine, which takes a part of a core.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import avx512
import link
import torch
from torch import nn

from deepshare import plan, share, zoo
from deepshare.private.cost import LAN, WAN, Link, predict, seconds_by_link
from deepshare.private.engines.gateshare.timing import Calibration, before_image, calibrate, lots_dealt
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, find_engine
from deepshare.private.runtime.party import Machine, run_here
from deepshare.sharing.piecewise import rewritten
from deepshare.text import table

LINKS = {"lan": LAN, "wan": WAN}
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
    parser.add_argument("--link", choices=LINKS, help="put the client on a host of its own, with such a link")
    parser.add_argument("--only", help="networks whose name has this in it")
    parser.add_argument("--tiny", action="store_true", help="one network, once")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    names = list(NETWORKS)[:1] if options.tiny else [name for name in NETWORKS if (options.only or "") in name]
    if not names:
        parser.error(f"--only {options.only}: take a part of one of {'; '.join(NETWORKS)}")
    wanted = LINKS.get(options.link)
    if wanted and (lack := link.missing()):
        parser.error(lack)
    began = time.perf_counter()
    calibration = calibrate()
    seconds = time.perf_counter() - began
    times, unlinked = 1 if options.tiny else options.times, nullcontext[dict[Role, Machine]]({})
    with link.joined(wanted) if wanted else unlinked as machines:
        rows = [compare(name, calibration, times, wanted, on(machines)) for name in names]
    if options.json:
        about = {"calibration": seconds, "cores": os.cpu_count(), "link": options.link}
        about |= {"capability": torch.backends.cpu.get_cpu_capability()}
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}))
    else:
        print(f"calibrated in {seconds:.1f} s")
        header = ("", "online", "estimated", "before the image", "estimated", "off by", "load")
        print(table(header, [cells(row) for row in rows], "<>>>>>>"))
    if options.within is not None and any(row.off > options.within for row in rows):
        raise SystemExit(1)


def on(machines: dict[Role, Machine]) -> dict[Role, Machine]:
    """Place the parties: the dealer runs next to the server."""
    return {**machines, "dealer": machines["server"]} if machines else {}


def compare(
    name: str,
    calibration: Calibration,
    times: int,
    wanted: Link | None = None,
    machines: dict[Role, Machine] | None = None,
) -> TimedRow:
    """Estimate the seconds of a network, and measure them."""
    network, arguments, side, gates = NETWORKS[name]
    size = (3, side, side)
    torch.manual_seed(0)
    model: nn.Module = rewritten(zoo.build(network, num_classes=100, **arguments), maxpool="avg").eval()
    if gates is not None:
        model = share(model, plan(model, size, gates)).eval()
    program = translate(model, size, compare=False)
    where = "this machine" if wanted is None else wanted.name
    estimated = seconds_by_link(calibration, program, predict(program, size, "gateshare"))
    runs = [measure(program, torch.zeros(1, *size), machines) for _ in range(times)]
    return TimedRow(
        name,
        estimated["online"][where],
        statistics.median(seconds for seconds, _ in runs),
        estimated["before the image"][where],
        statistics.median(seconds for _, seconds in runs),
        os.getloadavg()[0],
    )


def measure(program: Program, image: torch.Tensor, machines: dict[Role, Machine] | None = None) -> tuple[float, float]:
    """Seconds of one image, online and before it, in a run in which no lot is replaced."""
    while True:
        outcomes = run_here(find_engine("gateshare"), program, image, {}, machines)
        if lots_dealt(outcomes, program) == 1:
            return max(outcome.seconds for outcome in outcomes.values()), before_image(outcomes)


def cells(row: TimedRow) -> tuple[str, ...]:
    """One row of the table."""
    times = (row.online, row.estimated_online, row.before, row.estimated_before)
    return (row.network, *(f"{seconds:.3f} s" for seconds in times), f"{row.off:.0%}", f"{row.load:.1f}")


if __name__ == "__main__":
    main()
