"""Engines next to each other in one run: those that need no trusted party, and those that do.

    python benchmarks/two_party.py                                # ResNet-18 of width 16, 1,536 gates: some minutes
    python benchmarks/two_party.py --network resnet18             # full width, 6,000 gates
    python benchmarks/two_party.py --engines gateshare gateshare-2pc     # without spu-cheetah, which takes most of it
    python benchmarks/two_party.py --engines crypten spu-semi2k     # which trust the server
    python benchmarks/two_party.py --without-avx512               # all parties as on a processor that has AVX2 only
    python benchmarks/two_party.py --images 4                     # made and run together
    sudo .venv/bin/python benchmarks/two_party.py --link wan      # between two namespaces: 100 Mbit/s, 40 ms round trip
    python benchmarks/two_party.py --engines gateshare gateshare-2pc --rounds 5 --json

All parties are processes on this machine, with one thread each; engines take turns, and times are medians over
`--rounds`. Engines of SPU run once: spu-cheetah takes minutes. Online is from the images to the logits. Offline is what
comes before and is made for these images: with a dealer its messages and the client openings, with gateshare-2pc
transfers and products under encryption with their hints, which later images do without. SPU has nothing offline. The
first lot is dealt while the session is set up; as in gateshare.py the dealer's time for it is added as if nothing had
been done meanwhile. A session's part (masked weights, keys, compilation) serves all further images. Times are for all
images, bytes for each.
"""

import argparse
import json
import statistics
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import avx512
import link
import torch
from gateshare import Measured, Timed

from deepshare import plan, share, zoo
from deepshare.private.api import run
from deepshare.private.cost import LAN, WAN, Cost, predict
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.outcome import Part
from deepshare.private.runtime.party import Machine

SIZE = (3, 32, 32)
NETWORKS: dict[str, tuple[dict[str, int], int]] = {
    "resnet18-16": ({"width": 16}, 1_536),
    "resnet18": ({}, 6_000),
    "tiny": ({"width": 2}, 1_536),
}
ENGINES = ("gateshare", "gateshare-2pc", "spu-cheetah")
OTHERS = ("crypten", "spu-semi2k")
LINKS = {"lan": LAN, "wan": WAN}


@dataclass(frozen=True)
class Row:
    """Figures of one engine: medians of seconds; bytes of both parties and the dealer for each image.

    `dealer_seconds` is the part of `offline_seconds` that the dealer spends on a lot while the session is set up.
    """

    engine: str
    images: int
    times: int
    online_seconds: float
    online_bytes: int
    rounds: int
    offline_seconds: float
    dealer_seconds: float
    offline_bytes: int
    predicted_offline_bytes: int
    session_seconds: float
    session_bytes: int
    predicted_session_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18-16", choices=NETWORKS)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES + OTHERS)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--link", choices=LINKS, help="put the parties on two hosts with such a link between them")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small network, once: to see that it works")
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    if options.tiny:
        options.network, options.rounds = "tiny", 1
    lack = link.missing() if options.link else None
    if lack:
        raise SystemExit(f"{lack}: leave --link out")
    with link.joined(LINKS[options.link]) if options.link else nullcontext({}) as machines:
        rows = measure(options.network, options.engines, options.images, options.rounds, machines)
    if options.json:
        about = {
            "network": options.network,
            "link": options.link,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}))
    else:
        show(rows)


def measure(name: str, engines: list[str], images: int, rounds: int, machines: dict[Role, Machine]) -> list[Row]:
    """Run all engines in turn, so that all see the same load."""
    torch.manual_seed(0)
    arguments, gates = NETWORKS[name]
    model = zoo.build("resnet18", num_classes=100, **arguments).eval()
    shared = share(model, plan(model, SIZE, gates), start="uniform")
    program, batch = translate(shared, SIZE), torch.randn(images, *SIZE)
    timed: dict[str, list[Timed]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            if engine == "gateshare":
                timed[engine].append(Measured(machines, None).run(program, batch))
            elif not engine.startswith("spu") or not timed[engine]:
                cost = run(program, batch, engine, machines=machines).cost
                timed[engine].append(Timed(cost, cost.offline.seconds))
    return [row(engine, found, predict(shared, SIZE, engine, images=images)) for engine, found in timed.items()]


def row(engine: str, timed: list[Timed], predicted: Cost) -> Row:
    """Exit with an error if bytes or rounds online are not the predicted ones, where they are exact."""
    costs = [one.cost for one in timed]
    first = min(costs, key=lambda cost: total(cost.offline))  # one whose lots had to be replaced made more
    if engine.startswith("gateshare"):
        measured, computed = total(first.online), total(predicted.online)
        if (measured, first.online.rounds) != (computed, predicted.online.rounds):
            raise SystemExit(f"{engine}: measured {measured:,} bytes online, computed {computed:,}")
    return Row(
        engine,
        first.images,
        len(costs),
        statistics.median(cost.seconds for cost in costs),
        total(first.online) // first.images,
        first.online.rounds,
        statistics.median(one.before for one in timed),
        statistics.median(one.dealer for one in timed),
        total(first.offline) // first.images,
        total(predicted.offline) // first.images,
        statistics.median(cost.session.seconds for cost in costs),
        total(first.session),
        total(predicted.session),
    )


def total(part: Part) -> int:
    """Bytes of all parties."""
    return part.server_bytes + part.client_bytes + part.dealer_bytes


def show(rows: list[Row]) -> None:
    """Format a table."""
    print(f"{'':14}{'online':>10}{'MB':>8}{'rounds':>8}{'offline':>10}{'MB':>8}{'session':>10}{'MB':>8}")
    for row in rows:
        online = f"{row.online_seconds:>9.3f}s{row.online_bytes / 1e6:>8.2f}{row.rounds:>8}"
        offline = f"{row.offline_seconds:>9.1f}s{row.offline_bytes / 1e6:>8.2f}"
        print(f"{row.engine:14}{online}{offline}{row.session_seconds:>9.1f}s{row.session_bytes / 1e6:>8.2f}")


if __name__ == "__main__":
    main()
