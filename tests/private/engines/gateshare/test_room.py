"""The order of imports inside the engine, its README, and kinds of steps that their protocols alone know."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import deepshare

ROOM = Path(deepshare.__file__).parent / "private" / "engines" / "gateshare"
NAME = "deepshare.private.engines.gateshare."
# A module may import from those of earlier levels, and modules of protocols/ and of folders below from one another.
LEVELS = (
    {"precision"},
    {"crypto", "fixedpoint"},
    {"lot"},
    {"protocols.transfers"},
    {"protocols.affine"},
    {"protocols.step"},
    {"protocols.truncation", "protocols.comparison"},
    {"protocols.schedule"},
    {"protocols"},
    {"compile", "reference"},
    {"cost_model", "preprocessing"},
    {"client", "server"},
    {"main"},
    {"making", "timing"},
    {"host", "hosted_client"},
)
FILES = [path for path in ROOM.rglob("*.py") if path.name != "__init__.py"]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOM).with_suffix("").parts)


def level(name: str) -> int:
    found = {part: number for number, parts in enumerate(LEVELS) for part in parts}
    return found[name] if name in found else found[name.split(".")[0]]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of the engine that a module imports, and the names from them."""
    modules = {module(file) for file in FILES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(NAME):
            source = f"{node.module}."[len(NAME) : -1]
            for alias in node.names:
                whole = f"{source}.{alias.name}".strip(".")
                yield (whole, "") if whole in modules else (source, alias.name)


def test_modules_import_from_earlier_ones_and_there_is_no_cycle() -> None:
    wrong = []
    for path in FILES:
        here = module(path)
        for other, _ in imported(path):
            beside = other.split(".")[0] == here.split(".")[0] and level(other) == level(here)
            if not beside and level(other) >= level(here):
                wrong.append(f"{here} imports {other}")
    assert wrong == []
    left = {module(path): {other for other, _ in imported(path)} for path in FILES}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left, "a cycle"


def test_no_module_but_protocols_knows_kinds_of_steps() -> None:
    known = {
        (module(path), name)
        for path in FILES
        for other, name in imported(path)
        if name.endswith("Step") and name != "ProtocolStep" and not module(path).startswith("protocols.")
    }
    assert known == set()


def test_the_readme_names_every_file_and_the_order_of_imports() -> None:
    text = (ROOM / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| file | content |") :].split("\n\n")[0]
    named = []
    for row in table.splitlines()[2:]:
        first, *others = re.findall(r"`([^`]+\.py)`", row.split("|")[1])  # others stand in the folder of the first
        named += [first, *(str(Path(first).parent / other) for other in others)]
    files = {str(path.relative_to(ROOM)) for path in ROOM.rglob("*.py")}
    assert len(named) == len(set(named))
    assert set(named) == {file for file in files if file == "__init__.py" or not file.endswith("__init__.py")}
    order = [part.split(", ") for part in re.findall(r"^`(.*->.*)`$", text, re.MULTILINE)[0].split(" -> ")]
    wanted = [sorted({name.split(".")[0] for name in names}) for names in LEVELS]
    assert [sorted(part) for part in order] == [part for at, part in enumerate(wanted) if part not in wanted[:at]]
