"""Engine gateshare compared with CrypTen as installed, engine crypten, and itself with all ReLUs, in one run.

    python benchmarks/gateshare.py                           # ResNet-18 at 32x32, 6,000 gates: ten minutes on two cores
    python benchmarks/gateshare.py --network wrn22-8         # 60,000 gates; also resnet18-64, 30,000 gates at 64x64
    python benchmarks/gateshare.py --peers none --json       # gateshare alone
    python benchmarks/gateshare.py --comparison-bits calibrated   # gates by comparisons of fewer bits
    python benchmarks/gateshare.py --without-avx512          # all parties as on a processor that has AVX2 only
    python benchmarks/gateshare.py --tiny                    # a small network, once: to see that it works
    sudo .venv/bin/python benchmarks/gateshare.py --link wan # between two namespaces: 100 Mbit/s, 40 ms round trip

All parties are processes on this machine, with one thread each on two cores; a party of gateshare, whose peer waits
meanwhile, uses both for the products of a linear layer. The network with shared gates runs `--rounds` times on one
image each, its peers fewer times in between; times are medians. "convolutions" is the server's time in linear layers,
in the same inferences. Then `--batch` images go together, on CrypTen once and on gateshare eight times in one session
(its parties cut them into as many as fit into their memory), and all that their time is made of is compared: before the
images, and with them.

"before" is the time before the images: from when the client asks for a lot until both parties wait for the images. The
first lot of a session is dealt while the session is set up. The dealer's time for it is added as if nothing had been
done meanwhile, so the figure is an upper bound. Every further lot is dealt while the parties use the one before, on the
same cores: what they wait for it is in "before", and what it slows them down is in "online". "in all" is the sum, the
wall clock of all images from the end of the session's setup, and that lot. A session (masked weights, once per network
and client) is listed beside it, as are the messages of each phase. Weights are random: bytes and time do not depend on
them, but gates near zero flip, and logits mean nothing. So every engine also runs a trained network on the bundled
digits, on this machine, and the images are counted that get the class of the plain network, and for gateshare the gates
that rounding flips, by an evaluation in the clear, since no party sees them; no count stops the timing. Where no link
can be created, its times are computed from bytes and round trips, and marked as such.
"""

import argparse
import json
import platform
import statistics
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import avx512
import link
import stock
import torch
from fidelity import in_the_clear, steps_of

from deepshare import plan, share, zoo
from deepshare.methods.square import curve
from deepshare.private.api import from_run, run, sample_images
from deepshare.private.cost import LAN, WAN, Cost, Link, seconds_on, total
from deepshare.private.engines.gateshare import cost_model
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate, comparison_bits_of
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.ir.program import GatedActivation, Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, find_engine
from deepshare.private.runtime.outcome import Part
from deepshare.private.runtime.party import Machine, run_here
from deepshare.training.run import networks

LINKS = {"lan": LAN, "wan": WAN}
NETWORKS = {
    "resnet18": ("resnet18", {"num_classes": 100}, 32, 6_000),
    "wrn22-8": ("wrn22-8", {"num_classes": 100}, 32, 60_000),
    "resnet18-64": ("resnet18", {"num_classes": 200}, 64, 30_000),
    "tiny": ("resnet18", {"num_classes": 10, "width": 4}, 16, 400),
}
BATCHES = 8  # in one session: what is dealt during its setup counts twice, and is a small part of all
TRAINED, DIGITS = "digits-resnet10-192", 32
PEERS = {
    "stock": "CrypTen as installed",
    "crypten": "engine crypten",
    "relu": "gateshare, all ReLUs",
    "squares": "gateshare, with squares",
}


@dataclass(frozen=True)
class Row:
    """Figures of one engine and network; seconds are medians. Those of a batch are seconds an image.

    The dealer's bytes to each party are computed for the number format of this network. `dealt`, the sum to both, and
    all other bytes are measured.
    """

    name: str
    gates: int
    times: int
    seconds: float
    slowest: float
    convolutions: float | None = None
    offline_seconds: float | None = None
    session_seconds: float | None = None
    batch: int | None = None
    batch_before: float | None = None
    batch_seconds: float | None = None
    batch_all: float | None = None
    rounds: int | None = None
    online_bytes: int | None = None
    dealer_to_client: int | None = None
    dealer_to_server: int | None = None
    dealt: int | None = None
    ahead: int | None = None
    session: int | None = None
    computed: bool = False
    same_class: int | None = None
    of_images: int | None = None
    flipped: int | None = None
    of_gates: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="images that go together, after those that go alone")
    parser.add_argument("--comparison-bits", help="of gateshare: a number, or calibrated; all bits without")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=[*PEERS, "none"])
    parser.add_argument("--link", choices=LINKS, help="put the parties on two hosts with such a link between them")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small network, once: to see that it works")
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    if options.tiny:
        options.network, options.rounds, options.batch = "tiny", 1, 2
    wanted, peers = LINKS.get(options.link), set(options.peers)
    lack = link.missing() if wanted else None
    if lack:
        print(f"{lack}: times on the link are computed, but not CrypTen's, whose bytes are unknown", file=sys.stderr)
        peers.discard("stock")
    with link.joined(wanted) if wanted and not lack else nullcontext({}) as machines:
        measured = Measured(machines, options.comparison_bits)
        rows = measure(options.network, options.rounds, options.batch, peers, measured, wanted if lack else None)
    if options.json:
        about = {"network": options.network, "link": options.link, "torch": torch.__version__}
        about |= {"comparison_bits": options.comparison_bits}
        about |= {"capability": torch.backends.cpu.get_cpu_capability()}
        print(json.dumps({**about, "machine": platform.processor(), "rows": [asdict(row) for row in rows]}))
    else:
        show(rows)


@dataclass(frozen=True)
class Timed:
    """One inference: its cost, and the seconds before the images, of which those of a dealer's first lot are a part."""

    cost: Cost
    before: float
    dealer: float = 0.0

    @property
    def all_seconds(self) -> float:
        """Before the images and with them."""
        return self.before + self.cost.seconds


@dataclass(frozen=True)
class Measured:
    """Runs gateshare on some machines, with comparisons of some bits."""

    machines: dict[Role, Machine]
    comparison_bits: str | None

    @property
    def options(self) -> dict[str, str]:
        """The engine's."""
        return {} if self.comparison_bits is None else {"comparison_bits": self.comparison_bits}

    def run(self, program: Program, images: torch.Tensor) -> Timed:
        """Run one session."""
        outcomes = run_here(find_engine("gateshare"), program, images, self.options, on(self.machines))
        cost = total("gateshare", program, len(images), list(outcomes.values()))
        hidden = outcomes["dealer"].offline.seconds * cost_model.inferences(program, len(images))[0] / len(images)
        return Timed(cost, outcomes["client"].offline.seconds + hidden, hidden)

    def steps(self, program: Program) -> Schedule:
        """The steps of a network."""
        bits = None if self.comparison_bits is None else comparison_bits_of(self.comparison_bits)
        return schedule(program.outline(), calibrate(program, comparison_bits=bits))


def measure(
    name: str, rounds: int, batch: int, peers: set[str], measured: Measured, computed: Link | None = None
) -> list[Row]:
    """Run all engines in turn, so that all see the same load; with a link whose times are computed."""
    torch.manual_seed(0)
    network, arguments, side, gates = NETWORKS[name]
    model = zoo.build(network, **arguments).eval()
    size = (3, side, side)
    shared = translate(share(model, plan(model, size, gates), start="uniform"), size)
    relu = translate(model, size)
    curved = share(model, plan(model, size, gates), start="uniform")
    curve(curved)
    squares = translate(curved, size)
    images, machines = torch.randn(1, *size), measured.machines
    several = torch.randn(BATCHES * batch, *size)
    timed: dict[str, list[Timed]] = {"gateshare": [], "relu": [], "squares": []}
    batches: list[Timed] = []
    cryptens: list[Cost] = []
    stocks, stock_batches = list[float](), list[float]()
    for turn in range(rounds):
        timed["gateshare"].append(measured.run(shared, images))
        if "squares" in peers:
            timed["squares"].append(measured.run(squares, images))
        if turn % 2 == 0 and computed is None:
            batches.append(measured.run(shared, several))
        if turn % 5 == 0:  # peers are slow, and their differences are larger than their noise
            if "relu" in peers:
                timed["relu"].append(measured.run(relu, images))
            if "crypten" in peers:
                cryptens.append(run(shared, images, "crypten", machines=machines).cost)
            if "stock" in peers:
                stocks.append(stock.run(shared, images, machines)[0])
                stock_batches.append(stock.run(shared, several[:batch], machines)[0] / batch)
    rows = [with_batch(full_row("gateshare", shared, timed["gateshare"], measured, computed), batch, batches)]
    for peer, program in (("relu", relu), ("squares", squares)):
        if timed[peer]:
            rows.append(full_row(PEERS[peer], program, timed[peer], measured, computed))
    if cryptens:
        seconds = times(cryptens, computed)
        rows.append(short_row(PEERS["crypten"], shared, seconds, computed=computed is not None))
    if stocks:
        row = short_row(PEERS["stock"], shared, stocks)
        rows.append(replace(row, batch=batch, batch_all=statistics.median(stock_batches)))
    return [with_agreement(row, measured) for row in rows]


def with_batch(row: Row, batch: int, batches: list[Timed]) -> Row:
    """Add the seconds an image of images that went together, unless times are computed."""
    if not batches:
        return row
    images = batches[0].cost.images
    return replace(
        row,
        batch=batch,
        batch_before=statistics.median(one.before for one in batches) / images,
        batch_seconds=statistics.median(one.cost.seconds for one in batches) / images,
        batch_all=statistics.median(one.all_seconds for one in batches) / images,
    )


def on(machines: dict[Role, Machine]) -> dict[Role, Machine]:
    """Place the parties: the dealer, whose work is done before, runs next to the server."""
    return {**machines, "dealer": machines["server"]} if machines else {}


def with_agreement(row: Row, measured: Measured) -> Row:
    """Count the digits on which an engine gives the class of the plain network, a trained one, and flipped gates."""
    engines = {"gateshare": "gateshare", PEERS["crypten"]: "crypten", PEERS["stock"]: None}
    if row.name not in engines:
        return row  # another network on an engine that has a row
    folder = networks.locate(networks.find(TRAINED))
    program, _ = from_run(folder)
    _, digits = sample_images(folder, DIGITS, None)
    engine = engines[row.name]
    logits = run(program, digits, engine).logits if engine else stock.run(program, digits, {})[1]
    same = int((logits.argmax(1) == program.evaluate(digits).argmax(1)).sum())
    row = replace(row, same_class=same, of_images=len(digits))
    if engine != "gateshare":
        return row
    flipped, _ = in_the_clear(steps_of(program, engine, measured.options), digits)
    return replace(row, flipped=flipped, of_gates=len(digits) * program.comparisons)


def times(costs: list[Cost], computed: Link | None) -> list[float]:
    """Return the seconds of each, plus those of its messages on a link."""
    first = costs[0]
    on_link = seconds_on(computed, first.online, find_engine(first.engine).delays) if computed else 0.0
    return [cost.seconds + on_link for cost in costs]


def full_row(name: str, program: Program, timed: list[Timed], measured: Measured, computed: Link | None) -> Row:
    steps, costs = measured.steps(program), [one.cost for one in timed]
    # An inference that had to replace a lot was dealt more.
    first = min(costs, key=lambda cost: cost.offline.dealer_bytes)
    check_bytes(program, steps, first)
    seconds = times(costs, computed)
    multiplied = {program.operations[step.operation] for step in steps.steps if isinstance(step, LinearStep)}
    products = {operation.name for operation in multiplied if not isinstance(operation, GatedActivation)}
    linear = [sum(layer.part.seconds for layer in cost.layers if layer.name in products) for cost in costs]
    return Row(
        name,
        program.comparisons,
        len(costs),
        statistics.median(seconds),
        max(seconds),
        convolutions=statistics.median(linear),
        offline_seconds=statistics.median(one.before for one in timed),
        session_seconds=statistics.median(cost.session.seconds for cost in costs),
        rounds=first.online.rounds,
        online_bytes=first.online.server_bytes + first.online.client_bytes,
        dealer_to_client=steps.lot_bytes(1, "client"),
        dealer_to_server=steps.lot_bytes(1, "server"),
        dealt=first.offline.dealer_bytes,
        ahead=first.offline.client_bytes,
        session=first.session.server_bytes,
        computed=computed is not None,
    )


def check_bytes(program: Program, steps: Schedule, cost: Cost) -> None:
    """Exit with an error if measured bytes differ from the computed ones; a replaced lot counts twice."""
    online = sum(cost_model.online(program, 1).values(), Part())
    lot = steps.lot_bytes(1, "client") + steps.lot_bytes(1, "server")
    pairs = {
        "online from the server": (cost.online.server_bytes, online.server_bytes),
        "online from the client": (cost.online.client_bytes, online.client_bytes),
        "round trips": (cost.online.rounds, online.rounds),
        "ahead": (cost.offline.client_bytes, cost_model.opening_bytes(steps)),
        "from the dealer, over whole lots": (cost.offline.dealer_bytes % lot, 0),
    }
    for what, (measured, computed) in pairs.items():
        if measured != computed:
            raise SystemExit(f"{what}: measured {measured:,}, computed {computed:,}")


def short_row(name: str, program: Program, seconds: list[float], *, computed: bool = False) -> Row:
    middle = statistics.median(seconds)
    return Row(name, program.comparisons, len(seconds), middle, max(seconds), computed=computed)


def show(rows: list[Row]) -> None:
    """Format a table with the ratio of each row to the first."""
    first = rows[0]
    print(f"{'':24}{'gates':>9}{'times':>6}{'online':>9}{'slowest':>9}{'ratio':>7}")
    for row in rows:
        figures = f"{row.gates:>9,}{row.times:>6}{row.seconds:>8.3f}s{row.slowest:>8.3f}s"
        print(f"{row.name:24}{figures}{row.seconds / first.seconds:>7.1f}{'  computed' if row.computed else ''}")
    for row in rows:
        if row.same_class is not None:
            print(f"\n{row.name}: the plain network's class on {row.same_class} of {row.of_images} digits", end="")
            print("" if row.flipped is None else f"; {row.flipped} of {row.of_gates:,} gates flipped by rounding")
        if row.convolutions is None:
            continue
        print(f"\n{row.name}: online {row.seconds / row.convolutions:.2f} times the server's convolutions", end="")
        print(f" ({row.convolutions:.3f} s), {row.rounds} round trips, {row.online_bytes:,} bytes;")
        print(
            f"  before the image {row.offline_seconds:.2f} s, once a session {row.session_seconds:.2f} s;", end="\n  "
        )
        print(f"from the dealer {row.dealt:,} bytes as measured; computed", end="")
        print(f" {row.dealer_to_client:,} to the client and {row.dealer_to_server:,} to the server;")
        print(f"  client to server {row.ahead:,}; once a session {row.session:,}")
        if row is not first and row.dealer_to_client and first.dealer_to_client:
            ratio = row.dealer_to_client / first.dealer_to_client
            print(f"  {ratio:.1f} times as much from the dealer to the client")
    show_batches(rows)


def show_batches(rows: list[Row]) -> None:
    """Print what images that go together cost in all, and the ratio to the first row."""
    first = rows[0]
    if first.batch_all is None or first.batch_before is None or first.batch_seconds is None:
        return
    print(f"\nin batches of {first.batch}, for each image: {first.batch_before:.3f} s before", end="")
    print(f" and {first.batch_seconds:.3f} s online, {first.batch_all:.3f} s in all")
    for row in rows[1:]:
        if row.batch_all is not None:
            print(f"{row.name}: {row.batch_all:.3f} s in all, {row.batch_all / first.batch_all:.1f} times as much")


if __name__ == "__main__":
    main()
