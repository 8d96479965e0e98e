"""Imports go one way, are declared as dependencies, and are lazy."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import deepshare

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "deepshare"
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may import from rooms of a lower level and from itself.
LEVEL = {"errors": 0, "files": 0, "lazy": 0, "text": 0, "sharing": 1, "methods": 2, "zoo": 2, "data": 2}
LEVEL |= {"training": 3, "private": 4, "study": 5, "cli": 6, "__main__": 7}
# Inside a room: a part may import from parts of earlier levels and from itself.
INSIDE = {
    "training": (
        {"recipe", "reporter", "hardware", "batchnorm"},
        {"run", "evaluate", "shared_models"},
        {"pretrained", "data_source", "catalog"},
        {"build", "loop"},
        {"trainer"},
        {"allocation"},
        {"pipeline"},
        {"api"},
    ),
    "private": (
        {"ir", "transport"},
        {"runtime"},
        {"cost", "engines"},
        {"api"},
        {"remote"},
        {"ui"},
    ),
    "private/engines/gateshare": (
        {"precision"},
        {"crypto", "fixedpoint"},
        {"lot"},
        {"protocols"},
        {"compile", "reference"},
        {"cost_model", "preprocessing"},
        {"client", "server"},
        {"main"},
        {"making", "timing"},
        {"host", "hosted_client"},
    ),
    "study": (
        {"drawing", "samples"},
        {"published", "affine", "dimension", "xor", "scenes"},
        {"boundary"},
        {"compare", "report"},
    ),
}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file; names of the package's front as modules behind it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "deepshare":
                yield from (f"deepshare.{deepshare._MODULE_OF.get(name.name) or name.name}" for name in node.names)
            else:
                yield str(node.module)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_lower_rooms(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    others = {name.split(".")[1] for name in imports(path) if name.startswith("deepshare.")} - {here, "__version__"}
    assert {other for other in others if LEVEL[other] >= LEVEL[here]} == set()


@pytest.mark.parametrize("here", INSIDE)
def test_a_part_of_a_room_imports_only_from_earlier_parts(here: str) -> None:
    level = {part: number for number, parts in enumerate(INSIDE[here]) for part in parts}
    files = [path for path in (PACKAGE / here).rglob("*.py") if path != PACKAGE / here / "__init__.py"]
    prefix, wrong = f"deepshare.{here.replace('/', '.')}.", []
    for path in files:
        part = path.relative_to(PACKAGE / here).with_suffix("").parts[0]
        named = (name.removeprefix(prefix) for name in modules(path) if name.startswith(prefix))
        others = {name.split(".")[0] for name in named} - {part}
        wrong += [f"{path}: {other}" for other in others if level[other] >= level[part]]
    assert wrong == []


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ("cli", "study")], ids=lambda path: str(path.name))
def test_the_command_line_and_studies_know_engines_by_their_interface(path: Path) -> None:
    assert [name for name in modules(path) if name.startswith("deepshare.private.engines.")] == []


def test_no_import_is_circular() -> None:
    graph = {_module(path): set(modules(path)) - {_module(path)} for path in FILES}
    TopologicalSorter(graph).prepare()  # else it raises CycleError, which names the circle


def modules(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, also as a name of its parent."""
    known = {_module(file) for file in FILES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("deepshare"):
            named = (f"{node.module}.{name.name}" for name in node.names)
            yield from (name if name in known else str(node.module) for name in named)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_check_sees_an_import_inside_a_function(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from deepshare import plan, zoo\n    import deepshare.cli\n")
    assert sorted(imports(file)) == ["deepshare.cli", "deepshare.sharing.planning", "deepshare.zoo"]


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = {_normal(re.split(r"[<>=\[; ]", line)[0]) for line in project["dependencies"] + extras}
    known = dict(packages_distributions()) | {"pydantic_core": ["pydantic"]}  # which pins it and documents its types
    roots = {name.partition(".")[0] for path in FILES for name in imports(path)}
    outside = roots - sys.stdlib_module_names - {"deepshare"}
    undeclared = {root for root in outside if not {_normal(name) for name in known.get(root, [root])} & declared}
    assert undeclared == set()


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_importing_the_package_imports_next_to_nothing() -> None:
    script = "import sys; before = set(sys.modules); import deepshare; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names
    assert loaded == {"deepshare"}


@pytest.mark.parametrize("name", deepshare.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(deepshare, name) is not None
    assert name in dir(deepshare)


def test_plan_is_the_function_even_after_its_module_was_imported() -> None:
    import deepshare.sharing.planning

    assert deepshare.plan is deepshare.sharing.planning.plan


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        deepshare.nonsense  # noqa: B018


def test_torchvision_can_be_looked_for_without_torch_and_then_imported() -> None:
    script = (
        "import sys, importlib.util as u; assert u.find_spec('torchvision'); assert 'torch' not in sys.modules; "
        "import torchvision; print(torchvision.models.resnet18(num_classes=7).fc.out_features)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_tests_share_code_by_plain_modules_alone() -> None:
    wrong = re.compile(r"^ *(?:from|import) tests\b.*\b(?:conftest|test_\w+)\b.*$", re.MULTILINE)
    found = {path.name: wrong.findall(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert (
        len(wrong.findall("from tests.a.conftest import b\nfrom tests.a import test_b\nfrom tests.a import c\n")) == 2
    )
