"""Versions that are installed together: each dependency is pinned, by the lock with all that it brings."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pins(file: str) -> dict[str, str]:
    """Versions by package; every line that is no comment pins one."""
    lines = [line for line in (ROOT / file).read_text("utf-8").splitlines() if line and not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]  # no suffix such as +cpu
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in project["dependencies"] + extras]


def everything(wanted: list[Requirement]) -> set[str]:
    """Packages that requirements bring, as far as they are installed here."""
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.add(canonicalize_name(requirement.name))
        try:
            lines = requires(requirement.name) or []
        except PackageNotFoundError:
            continue
        brought = [Requirement(line) for line in lines]
        extras = requirement.extras or {""}
        wanted += [one for one in brought if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return found


def test_the_lock_pins_every_dependency_and_what_it_brings() -> None:
    brought = everything(declared())
    builds = {name for name in brought if re.match(r"(nvidia|cuda|triton)\b", name)}  # pinned by torch
    assert brought - builds - {"deepshare"} <= pins("requirements.lock").keys()


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    constraints, lock = pins("constraints.txt"), pins("requirements.lock")
    assert constraints == {name: lock.get(name) for name in constraints}


def test_the_constraints_pin_what_the_project_names() -> None:
    free = {canonicalize_name(one.name) for one in declared() if "==" not in str(one.specifier)}
    assert free - {"deepshare"} <= pins("constraints.txt").keys()
