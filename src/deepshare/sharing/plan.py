"""Plans: groups of sites that share gates, their numbers of prototypes, and the versioned JSON file of a plan."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from deepshare.errors import PlanError, PlanMismatchError, reason
from deepshare.files import write_atomically
from deepshare.sharing.sites import Kind, Site, Sites
from deepshare.text import table

FORMAT = "deepshare-plan"
VERSION = 3  # 2 has patches, 3 has leaders; a plan is written in the oldest version that can express it

Pi = Literal["round-robin", "contiguous", "learned"]


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
        return _dump({"gates": self.gates, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Parse a plan.

        Raises:
            PlanError: The text is not a plan, is of a newer version, or is inconsistent.
        """
        fields = _parse(text)
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
        try:
            write_atomically(Path(path), self.to_json().encode())
        except OSError as error:
            raise PlanError(
                f"cannot write {path}: {error.strerror}: give a file in a folder that can be written"
            ) from error

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan from a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise PlanError(f"cannot read {path}: {why}: give a file that deepshare plan wrote") from error
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


def patches(site: Site, side: int) -> int:
    """Patches of one channel: the gates of one prototype."""
    return -(-site.height // side) * -(-site.width // side)


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


def _dump(plan: dict[str, Any]) -> str:
    """Serialise the fields of a plan, with groups and sites as dictionaries, to JSON text."""
    groups = plan["groups"]
    version = 3 if any(group["lead"] for group in groups) else 2 if any(group["patch"] > 1 for group in groups) else 1
    content = {"format": FORMAT, "version": version, **plan}
    content["groups"] = [_entry(group, version) for group in groups]
    return json.dumps(content, indent=1) + "\n"


def _parse(text: str) -> dict[str, Any]:
    """Parse JSON text into the fields of a plan, with sites as `Site`; every value is validated on its own.

    Raises:
        PlanError: The text is not a plan, is of a newer version, or has an invalid value.
    """
    content = _object(text)
    _expect(content, {"version": int})
    version = content["version"]
    if version > VERSION:
        raise PlanError(f"it has version {version} and this deepshare reads up to version {VERSION}: update deepshare")
    _expect(content, {"input_size": list, "budget": int, "groups": list, "mapping": str, "affine": bool, "gates": int})
    for group in content["groups"]:
        _expect(group, _group_types(version))
        for site in group["sites"]:
            _expect(site, _SITE_TYPES)
            if site["kind"] not in get_args(Kind):
                raise PlanError(f"{site['name']} is reached as {site['kind']!r}: make the plan again")
    size = content["input_size"]
    if not content["groups"] or not size or not all(isinstance(n, int) and n > 0 for n in size):
        raise PlanError("the plan has no group or an invalid input size: make it again with deepshare plan")
    groups = [
        {
            "prototypes": group["prototypes"],
            "sites": tuple(Site(**{name: site[name] for name in _SITE_TYPES}) for site in group["sites"]),
            "patch": group["patch"] if version > 1 else 1,
            "lead": _lead(group) if version > 2 else 0,
        }
        for group in content["groups"]
    ]
    kept = {key: content[key] for key in ("budget", "mapping", "affine", "gates")}
    return {**kept, "input_size": tuple(size), "groups": groups}


_SITE_TYPES: dict[str, type] = {
    "name": str,
    "channels": int,
    "height": int,
    "width": int,
    "kind": str,
    "block": str,
}


def _group_types(version: int) -> dict[str, type]:
    types = {"prototypes": int, "sites": list, "patch": int, "leader": str}
    return dict(list(types.items())[: version + 1])


def _entry(group: dict[str, Any], version: int) -> dict[str, Any]:
    sites = [{name: site[name] for name in _SITE_TYPES} for site in group["sites"]]
    entry = {"prototypes": group["prototypes"], "sites": sites}
    if version > 1:
        entry["patch"] = group["patch"]
    if version > 2:
        entry["leader"] = group["sites"][group["lead"]]["name"]
    return entry


def _lead(group: dict[str, Any]) -> int:
    names = [site["name"] for site in group["sites"]]
    return names.index(group["leader"]) if group["leader"] in names else -1


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"not valid JSON ({reason(error)}), so it is damaged or truncated: make it again with deepshare plan"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PlanError("not a plan: give a file that deepshare plan wrote")
    return content


def _expect(content: Any, types: dict[str, type]) -> None:
    for key, kind in types.items():
        value = content.get(key) if isinstance(content, dict) else None
        possible = type(value) is kind and (not isinstance(value, int) or isinstance(value, bool) or value >= 1)
        if not possible:
            wanted = {int: "a whole number of 1 or more", list: "a list", str: "text", bool: "true or false"}[kind]
            raise PlanError(f"{key} is {value!r}, not {wanted}: make the plan again with deepshare plan")
