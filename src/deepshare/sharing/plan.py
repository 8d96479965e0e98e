"""Plans: groups of sites that share gates, and their numbers of prototypes."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from deepshare.errors import BudgetError, PlanError, PlanMismatchError, UnsupportedModelError
from deepshare.sharing import budget as budgets
from deepshare.sharing import plan_file
from deepshare.sharing.sites import Site, Sites, find_sites
from deepshare.text import table

Pi = Literal["round-robin", "contiguous", "learned"]
Grouping = Literal["consecutive", "stage"]


@dataclass(frozen=True)
class Group:
    """Sites of equal shape that share the gates of one of them, the leader: consecutive ones, or all of a stage.

    Attributes:
        prototypes: Channels of the leader whose gates are computed.
        sites: The sites, in order of the forward pass.
        patch: Side of the square patches whose neurons share a gate.
        lead: Index of the leader. Sites before it cannot use its gates and become linear.
    """

    prototypes: int
    sites: tuple[Site, ...]
    patch: int = 1
    lead: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lead < len(self.sites):
            raise PlanError("a group has no site, or its leader is not one of them: make the plan again")
        if {site.shape for site in self.sites} != {self.leader.shape}:
            raise PlanError(f"the group led by {self.leader.name} has sites of different shapes: make the plan again")
        if not 1 <= self.prototypes <= self.leader.channels:
            raise PlanError(
                f"the group led by {self.leader.name} has {self.prototypes} prototypes: "
                f"give between 1 and its {self.leader.channels} channels"
            )
        if not 1 <= self.patch <= min(self.leader.height, self.leader.width):
            raise PlanError(
                f"the group led by {self.leader.name} has patches of {self.patch}x{self.patch}: "
                f"give a side between 1 and that of its map of {self.leader.height}x{self.leader.width}"
            )

    @property
    def leader(self) -> Site:
        """Site that computes the gates."""
        return self.sites[self.lead]

    @property
    def followers(self) -> tuple[Site, ...]:
        """Sites that reuse the gates."""
        return self.sites[self.lead + 1 :]

    @property
    def gated(self) -> tuple[Site, ...]:
        """Leader and followers: all sites except those that become linear."""
        return self.sites[self.lead :]

    @property
    def gates(self) -> int:
        """Comparisons per image."""
        return self.prototypes * patches(self.leader, self.patch)


@dataclass(frozen=True)
class Plan:
    """Assignment of gates to the sites of one network.

    Attributes:
        input_size: Size of one input without the batch.
        budget: Requested number of gates; `gates`, the number used, is never larger.
        groups: The groups, in order of the forward pass.
        mapping: Assignment of replicates to prototypes: round robin, contiguous blocks, or learned. A learned one is
            stored with the weights, like alpha and beta.
        affine: Every channel has its own alpha and beta.
    """

    input_size: tuple[int, ...]
    budget: int
    groups: tuple[Group, ...]
    mapping: Pi = "round-robin"
    affine: bool = True

    def __post_init__(self) -> None:
        if self.mapping not in get_args(Pi):
            raise PlanError(f"mapping {self.mapping!r} is unknown: give {', '.join(get_args(Pi))}")
        names = [site.name for site in self.sites]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PlanError(f"the plan names {', '.join(twice)} more than once: make the plan again")

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in order."""
        return tuple(site for group in self.groups for site in group.sites)

    @property
    def gates(self) -> int:
        """Comparisons of the shared network per image."""
        return sum(group.gates for group in self.groups)

    @property
    def neurons(self) -> int:
        """ReLUs of the plain network."""
        return sum(site.neurons for site in self.sites)

    def check(self, sites: Sites) -> None:
        """Check that the plan fits the sites of a model.

        Raises:
            PlanMismatchError: It does not; the message names every difference.
        """
        differences = list(_differences(self.groups, sites))
        if differences:
            raise PlanMismatchError(
                f"the plan was made for another model ({'; '.join(differences)}): make a plan for this one"
            )

    def to_json(self) -> str:
        """Serialise the plan to versioned JSON."""
        return plan_file.dump({"gates": self.gates, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Parse a plan.

        Raises:
            PlanError: The text is not a plan, is of a newer version, or is inconsistent.
        """
        fields = plan_file.parse(text)
        gates, groups = fields.pop("gates"), tuple(Group(**group) for group in fields.pop("groups"))
        plan = Plan(groups=groups, **fields)
        if plan.gates != gates or not plan.gates <= plan.budget <= plan.neurons:
            raise PlanError(
                f"the plan states {gates} gates within a budget of {plan.budget}, but its groups have {plan.gates}: "
                "it was edited by hand; make it again with deepshare plan"
            )
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan to a file atomically."""
        plan_file.save(self.to_json(), Path(path))

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan from a file."""
        text = plan_file.load(Path(path))
        try:
            return Plan.from_json(text)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    def __str__(self) -> str:
        rows = [
            (
                str(number),
                _leader(group),
                _followers(group),
                _map(group),
                f"{group.prototypes} of {group.leader.channels}",
                _bar(group.prototypes / group.leader.channels),
                f"{group.gates:,}",
                f"{sum(site.neurons for site in group.sites):,}",
            )
            for number, group in enumerate(self.groups, 1)
        ]
        header = ("group", "leader", "followers", "map", "prototypes", "share", "gates", "instead of")
        total = f"{self.gates:,} gates instead of {self.neurons:,} ({self.gates / self.neurons:.2%})"
        spare = f", {self.budget - self.gates:,} of the budget left" if self.gates < self.budget else ""
        shape = "x".join(map(str, self.input_size))
        sites = f"{len(self.sites)} sites in {len(self.groups)} groups, input {shape}"
        return f"{table(header, rows, '><<>><>>')}\n{total}{spare}; {sites}"


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
    gates = budgets.parse(budget, sites.neurons - pooled)
    if patch < 1:
        raise BudgetError(f"patch {patch} is too small: give a side of 1 or more")
    sides = [1 if exact else min(patch, run[0].height, run[0].width) for run, exact in zip(runs, whole, strict=True)]
    units = [patches(run[0], side) for run, side, exact in zip(runs, sides, whole, strict=True) if not exact]
    counts = iter(budgets.split(units, [run[0].channels for run in open_runs], shares, gates))
    prototypes = [run[0].channels if exact else next(counts) for run, exact in zip(runs, whole, strict=True)]
    made = tuple(Group(*group) for group in zip(prototypes, runs, sides, _leads(runs, leaders), strict=True))
    return Plan(sites.input_size, gates + pooled, made, mapping, affine)


_SMOOTH = frozenset({"elu", "selu", "celu"})  # compare, and are no ReLUs


def _check_any(model: nn.Module, sites: Sites, shareable: int) -> None:
    """Check that there is a gate to share."""
    if shareable:
        return
    found = {other.what for other in sites.others}
    linear = found - _SMOOTH
    cures = [
        "turn its ReLU6 into ReLU first, with relu6_to_relu or --relu6-to-relu" if "relu6" in found else "",
        "write its activations as ReLUs first, with piecewise_to_relu or --piecewise-to-relu" if linear else "",
        "if its activations are smooth, turn them into ReLUs first, with smooth_to_relu or --smooth-to-relu",
    ]
    cure = next(filter(None, cures))
    raise UnsupportedModelError(f"{type(model).__name__} calls no ReLU, so there is no gate to share: {cure}")


def patches(site: Site, side: int) -> int:
    """Patches of one channel: the gates of one prototype."""
    return -(-site.height // side) * -(-site.width // side)


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


def _differences(groups: Sequence[Group], found: Sequence[Site]) -> Iterator[str]:
    here = {site.name: site for site in found}
    there = {site.name: site for group in groups for site in group.sites}
    for name in there:
        if name not in here:
            yield f"no site {name} in the model"
        elif here[name].shape != there[name].shape:
            yield f"{name} has shape {_shape(here[name])} in the model and {_shape(there[name])} in the plan"
    yield from (f"no site {name} in the plan" for name in here if name not in there)
    order = {name: place for place, name in enumerate(here)}
    places = [[order.get(site.name, -1) for site in group.sites] for group in groups]
    if here.keys() == there.keys() and (any(p != sorted(p) for p in places) or places != sorted(places)):
        yield "the sites run in another order"


def _map(group: Group) -> str:
    by = f" by {group.patch}x{group.patch}" if group.patch > 1 else ""
    return f"{group.leader.height}x{group.leader.width}{by}"


def _shape(site: Site) -> str:
    return "x".join(map(str, site.shape))


def _leader(group: Group) -> str:
    return f"{group.leader.name} (after {group.lead} linear)" if group.lead else group.leader.name


def _followers(group: Group) -> str:
    match [site.name for site in group.followers]:
        case []:
            return "-"
        case [only]:
            return only
        case [first, *_, last]:
            return f"{first} .. {last} ({len(group.followers)})"
    raise AssertionError


def _bar(share: float) -> str:
    eighths = max(1, round(share * 80))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
