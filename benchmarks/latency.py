"""The paper's latency table on a CPU: a network with all its ReLUs and with few gates, on one engine in one run.

    python benchmarks/latency.py                       # ResNet-18 of width 16, a few minutes on two cores
    python benchmarks/latency.py --full                # all rows of the paper's Table 6, much longer
    python benchmarks/latency.py --only resnet18       # of these the rows of one network
    python benchmarks/latency.py --full --engine gateshare
    python benchmarks/latency.py --full --without-avx512   # all parties as on a processor that has AVX2 only
    python benchmarks/latency.py --engine spu-semi2k --rounds 3 --json
    sudo .venv/bin/python benchmarks/latency.py --full --first --link wan   # two namespaces with a slow link (Linux)

Each network runs between two processes on this machine, with all ReLUs and, at the same budget, with DeepShare's shared
gates, AutoReP's polynomials and SNL's masks. Weights, alpha, beta and the coefficients of the polynomials are secret in
all, and random, which affects neither bytes nor time. Masks affect both: a site that training left without a gate saves
its rounds. So every site has as many gates as a trained network has there, at random positions, which cost the same:

- trained: the study fair has a record of this network and budget, and these are its counts.
- scaled: the densities of its record at 2,288 gates of ResNet-18 of width 16, multiplied until they fill the budget,
  and at most 1. In a network with other sites each takes the density of the site at the same relative depth.

Ratios to the network with all ReLUs are printed, of medians over the rounds: time of the activations and total time,
both online; bytes of the activations online; all bytes, those sent before the image included. On gateshare the last is
where gates save bytes, since every neuron is opened online. The variants take turns, so that all see the same load.

The paper's speed-ups are listed next to them. They were measured on two GPUs, where convolutions are nearly free and
comparisons take almost all of the time. On a CPU the convolutions of secret shares take much of an inference, so the
total time falls less; a faster machine would show the ratio of the activations overall.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import avx512
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
from deepshare.private.runtime.outcome import Part
from deepshare.private.runtime.party import Machine
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.planning import split_budget
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
MASKED = {"AutoReP": "autorep-running", "SNL": "snl"}  # methods of the study
RECORDED = 2_288
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
    bytes_before: int
    rounds: int
    lan: float
    wan: float
    activations_ratio: float
    all_ratio: float
    activation_bytes_ratio: float
    bytes_ratio: float
    paper: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="crypten", choices=engine_names())
    parser.add_argument("--full", action="store_true", help="all rows of the paper's table")
    parser.add_argument("--only", choices=[setup.name for setup in PAPER], help="of these the rows of one network")
    parser.add_argument("--first", action="store_true", help="of each network the largest budget alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", choices=LINKS, help="put the parties on two hosts with such a link between them")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small network, once: to see that it works")
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    if options.link and (lack := link.missing()):
        parser.error(lack)
    setups = [s for s in PAPER if options.only in (None, s.name)] if options.full or options.only else [SMALL]
    if options.tiny:
        setups, options.rounds = [TINY], 1
    if options.first:
        setups = [replace(setup, budgets=dict(list(setup.budgets.items())[:1])) for setup in setups]
    with link.joined(LINKS[options.link]) if options.link else nullcontext({}) as machines:
        rows = [row for setup in setups for row in measure(setup, options.engine, options.rounds, machines)]
    if options.json:
        about = {"engine": options.engine, "link": options.link, "rounds": options.rounds, "torch": torch.__version__}
        about |= {"capability": torch.backends.cpu.get_cpu_capability()}
        print(json.dumps({**about, "machine": platform.processor(), "rows": [asdict(row) for row in rows]}))
        return
    print(f"{options.engine}, {'two processes' if options.link is None else LINKS[options.link].name}")
    show(rows)


def show(rows: list[Row]) -> None:
    """Print a table."""
    print(f"{'':14}{'':10}{'masks':8}{'gates':>10}{'online':>9}{'activ.':>9}{'activ. MB':>10}{'before MB':>10}", end="")
    print(f"{'rounds':>8}{'x activ.':>10}{'x online':>9}{'x act.MB':>9}{'x all MB':>9}{'x paper':>9}")
    for row in rows:
        paper = "" if row.paper is None else f"{row.paper:.2f}"
        print(f"{row.setup:14}{row.kind:10}{row.masks or '':8}{row.gates:>10,}{row.seconds:>8.2f}s", end="")
        print(
            f"{row.activation_seconds:>8.2f}s{row.activation_bytes / 1e6:>10.2f}{row.bytes_before / 1e6:>10.1f}", end=""
        )
        print(f"{row.rounds:>8}{row.activations_ratio:>10.2f}{row.all_ratio:>9.2f}", end="")
        print(f"{row.activation_bytes_ratio:>9.2f}{row.bytes_ratio:>9.2f}{paper:>9}")


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
        masks = draw(sites, site_counts(setup, kind, budget, sites, made.gates))
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


def has_record(setup: Setup, kind: str, budget: int) -> bool:
    """Whether the study fair has the counts of this network."""
    return setup.name == SMALL.name and _record(kind, budget).is_file()


def _record(kind: str, budget: int) -> Path:
    return RECORDS / f"subset-{MASKED[kind]}-{budget}-seed0.json"


def site_counts(setup: Setup, kind: str, budget: int, sites: list[Site], gates: int) -> list[int]:
    """Return the gates of each site: those that training left there, or as many in proportion to its densities."""
    trained = has_record(setup, kind, budget)
    found = json.loads(_record(kind, budget if trained else RECORDED).read_text(encoding="utf-8"))["site_gates"]
    if trained:
        return [found[site.name] for site in sites]
    small = find_sites(zoo.build(SMALL.network, **SMALL.arguments), SMALL.size)
    densities = [found[site.name] / site.neurons for site in small]
    step = (len(densities) - 1) / (len(sites) - 1)
    weights = [densities[round(number * step)] * site.neurons for number, site in enumerate(sites)]
    open_sites = [number for number, weight in enumerate(weights) if weight > 0]
    caps = [sites[number].neurons for number in open_sites]
    counts = split_budget([1] * len(caps), caps, [weights[number] for number in open_sites], gates)
    return [dict(zip(open_sites, counts, strict=True)).get(number, 0) for number in range(len(sites))]


def draw(sites: list[Site], counts: list[int]) -> dict[str, torch.Tensor]:
    """Draw masks at random, with given counts at each site."""
    return {
        site.name: (torch.randperm(site.neurons) < count).view(site.shape)
        for site, count in zip(sites, counts, strict=True)
    }


def row(setup: Setup, key: tuple[str, int], costs: list[Cost], base: list[Cost], engine: str) -> Row:
    kind, budget = key
    published = setup.budgets.get(budget)
    column = {"AutoReP": 0, "DeepShare": 1}.get(kind)
    first = costs[0]
    return Row(
        setup.name,
        kind,
        ("trained" if has_record(setup, kind, budget) else "scaled") if kind in MASKED else None,
        first.online.comparisons,
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.activations.seconds for cost in costs),
        sent(first.activations),
        sent(first.offline),
        first.online.rounds,
        seconds_on(LAN, first.online, find_engine(engine).delays),
        seconds_on(WAN, first.online, find_engine(engine).delays),
        statistics.median(b.activations.seconds / c.activations.seconds for b, c in zip(base, costs, strict=True)),
        statistics.median(b.seconds / c.seconds for b, c in zip(base, costs, strict=True)),
        sent(base[0].activations) / sent(first.activations),
        sent(base[0].online + base[0].offline) / sent(first.online + first.offline),
        None if published is None or column is None else published[column],
    )


def sent(part: Part) -> int:
    """Bytes that all parties send."""
    return part.server_bytes + part.client_bytes + part.dealer_bytes


if __name__ == "__main__":
    main()
