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


@dataclass(frozen=True)
class Group:
    """Consecutive sites of equal shape that share the gates of one of them, the leader.

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
        differences = list(_differences(self.sites, sites))
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
    mapping: Pi = "round-robin",
    affine: bool = True,
    patch: int = 1,
    leaders: Collection[str] = (),
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
        mapping: Assignment of replicates to prototypes.
        affine: Give every channel its own alpha and beta.
        patch: Side of square patches whose neurons also share a gate; a smaller map is one patch.
        leaders: Sites that lead their groups instead of the first; sites before them become linear.

    Raises:
        UnsupportedModelError: The model has no ReLU or does not run on this input size.
        BudgetError: The budget cannot be met, or the weights do not fit the sites.
    """
    sites = find_sites(model, input_size)
    if not sites:
        bounded = any(other.what == "relu6" for other in sites.others)
        cure = "turn its ReLU6 into ReLU first, with relu6_to_relu or --relu6-to-relu" if bounded else "give another"
        raise UnsupportedModelError(f"{type(model).__name__} calls no ReLU, so there is no gate to share: {cure}")
    runs = group_sites(sites, max_group=max_group if layer_sharing else 1, per_block=per_block)
    shares = _weights(runs, weights)
    gates = budgets.parse(budget, sites.neurons)
    if patch < 1:
        raise BudgetError(f"patch {patch} is too small: give a side of 1 or more")
    sides = [min(patch, run[0].height, run[0].width) for run in runs]
    units = [patches(run[0], side) for run, side in zip(runs, sides, strict=True)]
    counts = budgets.split(units, [run[0].channels for run in runs], shares, gates)
    groups = tuple(Group(*group) for group in zip(counts, runs, sides, _leads(runs, leaders), strict=True))
    return Plan(sites.input_size, gates, groups, mapping, affine)


def patches(site: Site, side: int) -> int:
    """Patches of one channel: the gates of one prototype."""
    return -(-site.height // side) * -(-site.width // side)


def group_sites(
    sites: Sequence[Site], *, max_group: int | None = None, per_block: bool = False
) -> list[tuple[Site, ...]]:
    """Split the sites into runs of equal shape."""
    if max_group is not None and max_group < 1:
        raise BudgetError(f"max_group {max_group} is too small: give 1 or more")
    runs: list[list[Site]] = [[sites[0]]]
    for before, site in pairwise(sites):
        full = max_group is not None and len(runs[-1]) == max_group
        if site.shape != before.shape or full or (per_block and site.block != before.block):
            runs.append([])
        runs[-1].append(site)
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


def _differences(planned: Sequence[Site], found: Sequence[Site]) -> Iterator[str]:
    here = {site.name: site for site in found}
    there = {site.name: site for site in planned}
    for name in there:
        if name not in here:
            yield f"no site {name} in the model"
        elif here[name].shape != there[name].shape:
            yield f"{name} has shape {_shape(here[name])} in the model and {_shape(there[name])} in the plan"
    yield from (f"no site {name} in the plan" for name in here if name not in there)
    if here.keys() == there.keys() and list(here) != list(there):
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
