"""Versioned JSON files of plans."""

import json
from pathlib import Path
from typing import Any, get_args

from deepshare.errors import PlanError, reason
from deepshare.files import write_atomically
from deepshare.sharing.sites import Kind, Site

FORMAT = "deepshare-plan"
VERSION = 3  # 2 has patches, 3 has leaders; a plan is written in the oldest version that can express it


def dump(plan: dict[str, Any]) -> str:
    """Serialise the fields of a plan, with groups and sites as dictionaries, to JSON text."""
    groups = plan["groups"]
    version = 3 if any(group["lead"] for group in groups) else 2 if any(group["patch"] > 1 for group in groups) else 1
    content = {"format": FORMAT, "version": version, **plan}
    content["groups"] = [_entry(group, version) for group in groups]
    return json.dumps(content, indent=1) + "\n"


def parse(text: str) -> dict[str, Any]:
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


def save(text: str, path: Path) -> None:
    """Write the text of a plan atomically."""
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise PlanError(
            f"cannot write {path}: {error.strerror}: give a file in a folder that can be written"
        ) from error


def load(path: Path) -> str:
    """Read the text of a plan."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise PlanError(f"cannot read {path}: {reason}: give a file that deepshare plan wrote") from error


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
