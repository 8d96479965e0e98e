"""Plans as versioned JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from deepshare.errors import PlanError, reason
from deepshare.files import write_atomically
from deepshare.sharing.sites import Kind, Site

if TYPE_CHECKING:
    from deepshare.sharing.plan import Plan

FORMAT = "deepshare-plan"
VERSION = 3  # 2 has patches, 3 names leaders; a plan is written in the oldest version that knows all it says


def dump(plan: Plan) -> str:
    """The plan as JSON text."""
    version = 3 if any(group.lead for group in plan.groups) else 2 if any(g.patch > 1 for g in plan.groups) else 1
    content = {"format": FORMAT, "version": version, "gates": plan.gates, **asdict(plan)}
    for group, entry in zip(plan.groups, content["groups"], strict=True):
        del entry["lead"]
        if version < 2:
            del entry["patch"]
        if version > 2:
            entry["leader"] = group.leader.name
    return json.dumps(content, indent=1) + "\n"


def parse(text: str) -> Plan:
    """The plan that JSON text describes; all of it is checked."""
    from deepshare.sharing.plan import Group, Plan

    content = _object(text)
    _expect(content, {"version": int})
    if content["version"] > VERSION:
        raise PlanError(f"it is of version {content['version']} and this reads version {VERSION}: update deepshare")
    _expect(content, {"input_size": list, "budget": int, "groups": list, "mapping": str, "affine": bool, "gates": int})
    for group in content["groups"]:
        _expect(group, _group_types(content["version"]))
        for site in group["sites"]:
            _expect(site, _SITE_TYPES)
            if site["kind"] not in get_args(Kind):
                raise PlanError(f"{site['name']} is reached as {site['kind']!r}: make the plan anew")
    groups = tuple(
        Group(
            group["prototypes"],
            tuple(Site(**{name: site[name] for name in _SITE_TYPES}) for site in group["sites"]),
            group["patch"] if content["version"] > 1 else 1,
            _lead(group) if content["version"] > 2 else 0,
        )
        for group in content["groups"]
    )
    size = content["input_size"]
    if not groups or not size or not all(isinstance(n, int) and n > 0 for n in size):
        raise PlanError("the plan has no group or an impossible input size: make it anew with deepshare plan")
    plan = Plan(tuple(size), content["budget"], groups, content["mapping"], content["affine"])
    if plan.gates != content["gates"] or not plan.gates <= plan.budget <= plan.neurons:
        raise PlanError(
            f"the plan says {content['gates']} gates within a budget of {plan.budget}, its groups have {plan.gates}: "
            "it was edited by hand; make it anew with deepshare plan"
        )
    return plan


def save(plan: Plan, path: Path) -> None:
    """Write the plan, whole or not at all."""
    try:
        write_atomically(path, dump(plan).encode())
    except OSError as error:
        raise PlanError(
            f"cannot write {path}: {error.strerror}: give a file in a folder that can be written"
        ) from error


def load(path: Path) -> Plan:
    """Read a plan file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise PlanError(f"cannot read {path}: {reason}: give a file that deepshare plan wrote") from error
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


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


def _lead(group: dict[str, Any]) -> int:
    names = [site["name"] for site in group["sites"]]
    return names.index(group["leader"]) if group["leader"] in names else -1


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"no valid JSON ({reason(error)}), so it is damaged or truncated: make it anew with deepshare plan"
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
            raise PlanError(f"{key} is {value!r} where {wanted} is due: make the plan anew with deepshare plan")
