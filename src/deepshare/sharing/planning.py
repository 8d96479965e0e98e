"""Planning: group the sites of a network, and divide a budget of gates among the groups."""

import difflib
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import nn

from deepshare.errors import BudgetError, PlanError, UnsupportedModelError
from deepshare.sharing.plan import Group, Pi, Plan, patches
from deepshare.sharing.sites import Site, Sites, find_sites, requests_of

Grouping = Literal["consecutive", "stage"]


def plan(
    model: nn.Module,
    input_size: Sequence[int],
    budget: int | str,
    weights: Mapping[str, float] | None = None,
    *,
    layer_sharing: bool = True,
    max_group: int | None = None,
    per_block: bool = False,
    groups: Grouping = "consecutive",
    mapping: Pi = "round-robin",
    affine: bool = True,
    patch: int = 1,
    leaders: Collection[str] = (),
    exact_pools: bool = False,
) -> Plan:
    """Plan the sharing of a network's gates within a budget.

    Args:
        model: Any network; it is not modified.
        input_size: Size of one input without the batch, such as (3, 32, 32).
        budget: Number of gates, such as 6000, or a percentage of all ReLUs, such as "1.2%".
        weights: Weight of each site in the division of the budget, by name; the weight of a group is the sum over its
            sites. By default every group gets the same fraction of its channels.
        layer_sharing: Group consecutive sites of equal shape; otherwise each site is its own group.
        max_group: Maximum number of sites in a group.
        per_block: End a group with its residual block.
        groups: Group consecutive sites of equal shape, as in the paper, or all of a stage, where other sites may come
            between them. A stage is a run of sites with maps of one size.
        mapping: Assignment of replicates to prototypes.
        affine: Give every channel its own alpha and beta.
        patch: Side of square patches whose neurons also share a gate; a smaller map is one patch.
        leaders: Sites that lead their groups instead of the first; sites before them become linear.
        exact_pools: Max-pooling that `maxpool_to_relu` wrote as ReLUs keeps all its gates, beyond the budget.

    Raises:
        UnsupportedModelError: The model has no ReLU or does not run on this input size.
        BudgetError: The budget cannot be met, or the weights do not fit the sites.
    """
    sites = find_sites(model, input_size)
    kept = tuple(site for site in sites if exact_pools and site.compares == "pool")
    _check_any(model, sites, len(sites) - len(kept))
    runs = group_sites(sites, max_group=max_group if layer_sharing else 1, per_block=per_block, groups=groups)
    whole = [run[0] in kept for run in runs]
    open_runs = [run for run, exact in zip(runs, whole, strict=True) if not exact]
    shares = _weights(open_runs, weights)
    pooled = sum(site.neurons for site in kept)
    gates = parse_budget(budget, sites.neurons - pooled)
    if patch < 1:
        raise BudgetError(f"patch {patch} is too small: give a side of 1 or more")
    sides = [1 if exact else min(patch, run[0].height, run[0].width) for run, exact in zip(runs, whole, strict=True)]
    units = [patches(run[0], side) for run, side, exact in zip(runs, sides, whole, strict=True) if not exact]
    counts = iter(split_budget(units, [run[0].channels for run in open_runs], shares, gates))
    prototypes = [run[0].channels if exact else next(counts) for run, exact in zip(runs, whole, strict=True)]
    made = tuple(Group(*group) for group in zip(prototypes, runs, sides, _leads(runs, leaders), strict=True))
    return Plan(sites.input_size, gates + pooled, made, mapping, affine)


_SMOOTH = frozenset({"elu", "selu", "celu"})  # compare, and are no ReLUs


def _check_any(model: nn.Module, sites: Sites, shareable: int) -> None:
    """Check that there is a gate to share."""
    if shareable:
        return
    found = {other.what for other in sites.others}
    asked = requests_of(model)
    pools = {what for what in found if "max" in what}
    linear = found - pools - _SMOOTH
    cures = [
        "turn its ReLU6 into ReLU first, with relu6_to_relu or --relu6-to-relu; or write it as two ReLUs, with "
        "piecewise_to_relu or --piecewise-to-relu"
        if "relu6" in found
        else "",
        "write its activations as ReLUs first, with piecewise_to_relu or --piecewise-to-relu"
        if linear and "piecewise-to-relu" not in asked
        else "",
        "share the gates of its max-pooling, with --maxpool shared" if len(sites) or "max_pool2d" in pools else "",
        "if its activations are smooth, turn them into ReLUs first, with smooth_to_relu or --smooth-to-relu"
        if "smooth-to-relu" not in asked
        else "",
        f"{', '.join(sorted(linear))} cannot be written as ReLUs: use nn.ReLU instead" if linear else "",
    ]
    cure = next(filter(None, cures), "put nn.ReLU between its layers")
    raise UnsupportedModelError(f"{type(model).__name__} calls no ReLU, so there is no gate to share: {cure}")


def group_sites(
    sites: Sequence[Site],
    *,
    max_group: int | None = None,
    per_block: bool = False,
    groups: Grouping = "consecutive",
) -> list[tuple[Site, ...]]:
    """Split the sites into runs of equal shape; bounds and comparisons of max-pooling are alone."""
    if max_group is not None and max_group < 1:
        raise BudgetError(f"max_group {max_group} is too small: give 1 or more")
    if groups == "stage":
        return _stages(sites, max_group, per_block)
    if groups != "consecutive":
        raise PlanError(f"groups {groups!r} is unknown: give {', '.join(get_args(Grouping))}")
    runs: list[list[Site]] = [[sites[0]]]
    for before, site in pairwise(sites):
        full = max_group is not None and len(runs[-1]) == max_group
        alone = site.compares != "sign" or before.compares != "sign"
        if site.shape != before.shape or full or alone or (per_block and site.block != before.block):
            runs.append([])
        runs[-1].append(site)
    return [tuple(run) for run in runs]


def _stages(sites: Sequence[Site], max_group: int | None, per_block: bool) -> list[tuple[Site, ...]]:
    """For each shape of a stage its sites, in the order of the first of them."""
    if per_block:
        raise PlanError("per_block ends groups with their block and groups 'stage' does not: give one of them")
    runs: list[list[Site]] = []
    latest: dict[tuple[int, int, int], list[Site]] = {}
    for before, site in zip([None, *sites], sites, strict=False):
        if before is not None and (site.height, site.width) != (before.height, before.width):
            latest = {}
        run = latest.get(site.shape)
        if run is None or site.compares != "sign" or len(run) == max_group:
            run = []
            runs.append(run)
            if site.compares == "sign":
                latest[site.shape] = run
        run.append(site)
    return [tuple(run) for run in runs]


def _leads(runs: Sequence[Sequence[Site]], leaders: Collection[str]) -> list[int]:
    unknown = set(leaders) - {site.name for run in runs for site in run}
    if unknown:
        raise PlanError(f"no site is named {', '.join(sorted(unknown))}: give sites of the network as leaders")
    led = [[place for place, site in enumerate(run) if site.name in leaders] or [0] for run in runs]
    if any(len(places) > 1 for places in led):
        raise PlanError("two leaders belong to one group: give at most one per group")
    return [place for (place,) in led]


def _weights(runs: Sequence[Sequence[Site]], weights: Mapping[str, float] | None) -> list[float]:
    if weights is None:
        return [float(run[0].neurons) for run in runs]
    check_weights(weights, [site.name for run in runs for site in run])
    return [sum(weights[site.name] for site in run) for run in runs]


def check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    """Check that there is one weight for each site.

    Raises:
        BudgetError: A weight is missing, or no site has its name.
    """
    missing = [name for name in names if name not in weights]
    unknown = [name for name in weights if name not in names]
    if missing or unknown:
        hint = [f"{name} (nearest: {n})" for name in unknown for n in difflib.get_close_matches(name, names, 1, 0)]
        said = [f"no weight for {', '.join(missing)}"] * bool(missing) + [f"no site is named {', '.join(hint)}"] * bool(
            unknown
        )
        raise BudgetError(f"the weights do not fit the sites: {'; '.join(said)}: give one weight for each site")


def parse_budget(budget: int | str, neurons: int) -> int:
    """Parse a budget: a number of gates (6000, "6,000") or a percentage of all ReLUs ("1.2%").

    Raises:
        BudgetError: It is neither, or not between 1 and the number of ReLUs.
    """
    if isinstance(budget, str):
        text = budget.strip()
        try:
            if text.endswith("%"):
                gates = math.floor(float(text[:-1]) * neurons / 100 + 1e-9)
            else:
                gates = int(text.replace(",", "").replace("_", ""))
        except (ValueError, OverflowError):
            raise BudgetError(
                f"budget {budget!r} is not a number: give a count such as 6000 or a share such as 1.2%"
            ) from None
    elif hasattr(budget, "__index__") and not isinstance(budget, bool):
        gates = operator.index(budget)
    else:
        raise BudgetError(
            f"budget {budget!r} is not a whole number: give a count such as 6000 or a share such as '1.2%'"
        )
    if gates < 1:
        raise BudgetError(f"budget {budget} is too small: give at least 1")
    if gates > neurons:
        raise BudgetError(f"budget {gates:,} is above the {neurons:,} ReLUs of the network: give at most that")
    return gates


def split_budget(units: Sequence[int], caps: Sequence[int], weights: Sequence[float], budget: int) -> list[int]:
    """Divide a budget among groups in proportion to their weights.

    Every group gets whole channels, at least one and at most its cap, and the total never exceeds the budget. What a
    capped group leaves goes to the others. What rounding leaves goes, channel by channel, to the group furthest below
    its share (or least above it), until the remainder is smaller than the cheapest free channel.

    Args:
        units: Gates per prototype channel of each group.
        caps: Channels of each group, the maximum of its prototypes.
        weights: Any non-negative numbers.
        budget: Number of gates.

    Returns:
        Prototype channels of each group.

    Raises:
        BudgetError: The budget is below one channel in every group, or a weight is negative or not a number.

    Example:
        >>> split_budget(units=[1024, 256, 64, 16], caps=[64, 128, 256, 512], weights=[64, 32, 16, 8], budget=6000)
        [3, 6, 14, 31]
    """
    minimum = sum(units)
    if budget < minimum:
        raise BudgetError(
            f"budget {budget:,} is below the minimum of {minimum:,} gates, one prototype channel in each of "
            f"{len(units)} groups: give at least {minimum:,}"
        )
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise BudgetError("a weight is negative or not a number: give a finite weight of 0 or more for every site")
    shares = _shares(units, caps, weights, budget)
    counts = [max(1, math.floor(share + 1e-9)) for share in shares]
    left = budget - sum(unit * count for unit, count in zip(units, counts, strict=True))
    while free := [g for g, count in enumerate(counts) if count < caps[g] and units[g] <= left]:
        chosen = max(free, key=lambda g: (1 - counts[g] / shares[g], -units[g], -g))
        counts[chosen] += 1
        left -= units[chosen]
    return counts


def _shares(units: Sequence[int], caps: Sequence[int], weights: Sequence[float], budget: int) -> list[float]:
    """Channels of each group before rounding: proportional, clipped to [1, cap], with the rest divided again.

    Clipping leaves a surplus or a deficit. Fixing the groups on the larger side first is water-filling with two bounds,
    which ends after at most one pass per group.
    """
    shares: dict[int, float] = {}
    while len(shares) < len(units):
        open_groups = [g for g in range(len(units)) if g not in shares]
        left = budget - sum(units[g] * share for g, share in shares.items())
        total = sum(weights[g] for g in open_groups)
        wanted = {g: left * weights[g] / total / units[g] if total else 1.0 for g in open_groups}
        clipped = {g: min(max(want, 1.0), float(caps[g])) for g, want in wanted.items()}
        excess = sum((clipped[g] - wanted[g]) * units[g] for g in open_groups)
        fixed = {
            g: clipped[g]
            for g in open_groups
            if (excess > 0 and clipped[g] > wanted[g]) or (excess < 0 and clipped[g] < wanted[g])
        }
        shares |= fixed or clipped
    return [shares[g] for g in range(len(units))]
