"""The paper's latency table on a CPU: a network with all its ReLUs and with few gates, on one engine in one run.

    python benchmarks/latency.py                       # ResNet-18 of width 16, a few minutes on two cores
    python benchmarks/latency.py --full                # all rows of the paper's Table 7, much longer
    python benchmarks/latency.py --full --only resnet18
    python benchmarks/latency.py --engine gateshare    # polynomials run there, too
    python benchmarks/latency.py --engine spu-semi2k --rounds 3 --json
    sudo .venv/bin/python benchmarks/latency.py --link wan     # between two namespaces with a slow link (Linux)

Each network runs between two processes on this machine, with all ReLUs and, at the same budget, with DeepShare's shared
gates, AutoReP's polynomials and SNL's masks. Weights, alpha, beta and the coefficients of the polynomials are secret in
all, and random, which affects neither bytes nor time. Masks affect both: a site that training left without a gate saves
its rounds. So every site has as many gates as a trained network has there, where the study fair has a record of it
(column masks: trained), at random positions, which cost the same. Elsewhere gates are drawn at random over all sites
(column masks: random), which nearly never leaves a site without one, and makes SNL and AutoReP dearer than they are.

Three ratios to the network with all ReLUs are printed, of online figures, as medians over the rounds: time of the
activations, total time, bytes of the activations. The variants take turns, so that all see the same load.

The paper's speed-ups are listed next to them. They were measured on two GPUs, where convolutions are nearly free and
comparisons take almost all of the time. On a CPU the convolutions of secret shares take most of an inference, so the
total time falls less; a faster machine would show the ratio of the activations overall.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import link
import torch
from torch import nn

from deepshare import plan, share, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.private.api import run
from deepshare.private.cost import LAN, WAN, Cost, seconds_on
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, engine_names, find_engine
from deepshare.private.runtime.party import Machine
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import Site, find_sites


@dataclass(frozen=True)
class Setup:
    """A network, its budgets, and the paper's speed-ups of AutoReP and DeepShare."""

    name: str
    network: str
    arguments: dict[str, int]
    size: tuple[int, int, int]
    budgets: dict[int, tuple[float, float] | None]


LINKS = {"lan": LAN, "wan": WAN}
RECORDS = Path(__file__).parents[1] / "results" / "compare" / "fair"
MASKED = {"AutoReP": "autorep", "SNL": "snl"}
SMALL = Setup("resnet18-16", "resnet18", {"width": 16, "num_classes": 100}, (3, 32, 32), {2_288: None, 12_288: None})
TINY = Setup("tiny", "resnet18", {"width": 4, "num_classes": 10}, (3, 16, 16), {400: None})
PAPER = (
    Setup(
        "resnet18",
        "resnet18",
        {"num_classes": 100},
        (3, 32, 32),
        {49_900: (4.92, 4.78), 12_900: (7.30, 6.76), 6_000: (8.01, 7.64)},
    ),
    Setup("wrn22-8", "wrn22-8", {"num_classes": 100}, (3, 32, 32), {150_000: (5.26, 4.10), 120_000: (5.87, 4.44)}),
    Setup("tiny-resnet18", "resnet18", {"num_classes": 200}, (3, 64, 64), {55_000: (8.63, 6.81), 30_000: (9.60, 8.25)}),
)


@dataclass(frozen=True)
class Row:
    """One network at one budget; ratios are of the network with all ReLUs to this one."""

    setup: str
    kind: str
    masks: str | None
    gates: int
    seconds: float
    activation_seconds: float
    activation_bytes: int
    rounds: int
    lan: float
    wan: float
    activations_ratio: float
    all_ratio: float
    bytes_ratio: float
    paper: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="crypten", choices=engine_names())
    parser.add_argument("--full", action="store_true", help="all rows of the paper's table")
    parser.add_argument("--only", choices=[setup.name for setup in PAPER], help="of these the rows of one network")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", choices=LINKS, help="put the parties on two hosts with such a link between them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small network, once: to see that it works")
    options = parser.parse_args()
    if options.link and (lack := link.missing()):
        parser.error(lack)
    setups = [s for s in PAPER if options.only in (None, s.name)] if options.full or options.only else [SMALL]
    if options.tiny:
        setups, options.rounds = [TINY], 1
    with link.joined(LINKS[options.link]) if options.link else nullcontext({}) as machines:
        rows = [row for setup in setups for row in measure(setup, options.engine, options.rounds, machines)]
    if options.json:
        about = {"engine": options.engine, "link": options.link, "rounds": options.rounds, "torch": torch.__version__}
        print(json.dumps({**about, "machine": platform.processor(), "rows": [asdict(row) for row in rows]}))
        return
    print(f"{'':14}{'':10}{'masks':8}{'gates':>9}{'online':>9}{'activ.':>9}{'activ. MB':>11}{'rounds':>8}", end="")
    print(f"{'x activ.':>10}{'x online':>10}{'x bytes':>9}{'x paper':>9}")
    for row in rows:
        paper = "" if row.paper is None else f"{row.paper:.2f}"
        print(f"{row.setup:14}{row.kind:10}{row.masks or '':8}{row.gates:>9,}{row.seconds:>8.2f}s", end="")
        print(f"{row.activation_seconds:>8.2f}s", end="")
        print(f"{row.activation_bytes / 1e6:>11.2f}{row.rounds:>8}{row.activations_ratio:>10.2f}", end="")
        print(f"{row.all_ratio:>10.2f}{row.bytes_ratio:>9.2f}{paper:>9}")


def measure(setup: Setup, engine: str, rounds: int, machines: dict[Role, Machine]) -> list[Row]:
    """Measure all variants of one network in turn."""
    torch.manual_seed(0)
    network = zoo.build(setup.network, **setup.arguments).eval()
    programs = {("ReLU", 0): translate(network, setup.size)}
    for budget in setup.budgets:
        programs |= {(kind, budget): program for kind, program in kinds(network, setup, budget).items()}
    for key, program in list(programs.items()):
        if refused := refusal(engine, program):
            print(f"{setup.name} {key[0]} {key[1]:,}: {refused}", file=sys.stderr)
            del programs[key]
    images = torch.randn(1, *setup.size)
    costs: dict[tuple[str, int], list[Cost]] = {key: [] for key in programs}
    for _ in range(rounds):
        for key, program in programs.items():
            costs[key].append(run(program, images, engine, machines=machines).cost)
    return [row(setup, key, costs[key], costs["ReLU", 0], engine) for key in programs]


def refusal(engine: str, program: Program) -> str | None:
    """Return why an engine does not support a program; None if it does."""
    try:
        find_engine(engine).check(program, {})
    except UnsupportedModelError as error:
        return str(error)
    return None


def kinds(network: nn.Module, setup: Setup, budget: int) -> dict[str, Program]:
    """Build the network with shared gates, AutoReP's polynomials and SNL's masks."""
    made = plan(network, setup.size, budget)
    sites = list(find_sites(network, setup.size))
    programs = {"DeepShare": translate(share(network, made, start="uniform"), setup.size)}
    for kind in MASKED:
        masks = draw(sites, trained_counts(setup, kind, budget), made.gates)
        coefficients = (1e-3, 0.5, 0.1) if kind == "AutoReP" else None
        network_of_kind = replace_sites(network, find_sites(network, setup.size), masked(masks, coefficients))
        programs[kind] = translate(network_of_kind.eval(), setup.size)
    return programs


def masked(
    masks: dict[str, torch.Tensor], coefficients: tuple[float, float, float] | None
) -> Callable[[Site], nn.Module]:
    """Return a function that makes the activation of a site: gates where its mask is, a polynomial elsewhere."""

    def make(site: Site) -> nn.Module:
        filled = [torch.full((site.channels, 1, 1), value) for value in coefficients] if coefficients else None
        activation = GatedPolynomial(site.shape, filled)
        activation.set_mask(masks[site.name])
        return activation

    return make


def trained_counts(setup: Setup, kind: str, budget: int) -> dict[str, int] | None:
    """Return the gates that training left at each site, from the study fair; None where it has no record."""
    record = RECORDS / f"subset-{MASKED[kind]}-{budget}-seed0.json"
    if setup is not SMALL or not record.is_file():
        return None
    counts: dict[str, int] | None = json.loads(record.read_text(encoding="utf-8")).get("site_gates")
    return counts


def draw(sites: list[Site], counts: dict[str, int] | None, gates: int) -> dict[str, torch.Tensor]:
    """Draw masks at random: with given counts at each site, or with one count for all sites together."""
    if counts is None:
        chosen = torch.zeros(sum(site.neurons for site in sites), dtype=torch.bool)
        chosen[torch.randperm(len(chosen))[:gates]] = True
        parts = chosen.split([site.neurons for site in sites])
    else:
        parts = tuple(torch.randperm(site.neurons) < counts[site.name] for site in sites)
    return {site.name: part.view(site.shape) for site, part in zip(sites, parts, strict=True)}


def row(setup: Setup, key: tuple[str, int], costs: list[Cost], base: list[Cost], engine: str) -> Row:
    kind, budget = key
    published = setup.budgets.get(budget)
    column = {"AutoReP": 0, "DeepShare": 1}.get(kind)
    first = costs[0]
    return Row(
        setup.name,
        kind,
        (trained_counts(setup, kind, budget) and "trained") or "random" if kind in MASKED else None,
        first.online.comparisons,
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.activations.seconds for cost in costs),
        sent(first),
        first.online.rounds,
        seconds_on(LAN, first.online, find_engine(engine).delays),
        seconds_on(WAN, first.online, find_engine(engine).delays),
        statistics.median(b.activations.seconds / c.activations.seconds for b, c in zip(base, costs, strict=True)),
        statistics.median(b.seconds / c.seconds for b, c in zip(base, costs, strict=True)),
        sent(base[0]) / sent(first),
        None if published is None or column is None else published[column],
    )


def sent(cost: Cost) -> int:
    """Bytes that both parties send for the activations."""
    return cost.activations.server_bytes + cost.activations.client_bytes


if __name__ == "__main__":
    main()
