"""On every page commands parse and links lead to files; Python blocks run; every public name is described."""

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError
from torch.distributed.run import get_args_parser

import deepshare
from deepshare import methods
from deepshare.cli import app
from deepshare.training.recipe.files import names
from tests.docs.pages import DOCS, ROOT, inline_commands, run_python, shell_lines

FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
PAGES = [*FRONT, *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("results/**/README.md"))]


def check(line: str) -> None:
    command, *rest = (word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word))
    command = command.removeprefix(".venv/bin/")
    if command == "torchrun":
        parsed = get_args_parser().parse_args(rest)
        command, rest = parsed.training_script, parsed.training_script_args
    if command == "deepshare":
        _, bound, _ = app.parse_args(rest, print_error=False, exit_on_error=False)
        recipe = bound.arguments.get("recipe")
        assert recipe is None or recipe in names(), f"there is no recipe {recipe}"
    elif command == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make has no {rest[0]}"
    elif command == "python":
        assert (ROOT / rest[0]).is_file(), f"there is no {rest[0]}"
    elif command == "pytest":
        paths = [word for word in rest if word.startswith("tests")]
        assert all((ROOT / path).exists() for path in paths), f"there is none of {paths}"
    else:
        assert command == "pip", f"a command that nobody checks: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_parse(page: Path) -> None:
    for line in shell_lines(page):
        check(line)
    for line in inline_commands(page):
        with suppress(MissingArgumentError):  # in the text a command may be named without all that it needs
            check(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        aimed = page.parent / target if target else page
        assert aimed.exists(), f"there is no {target}"
        assert not anchor or anchor in anchors(aimed), f"{target} has no {anchor}"


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", DOCS / "architecture.md"], ids=lambda page: page.name)
def test_files_and_folders_named_for_contributors_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]*\w(?:/|\.py|\.toml|\.txt|\.md))`", page.read_text("utf-8")))
    rooms = (
        "",
        "methods",
        "study",
        "training",
        "private",
        "private/ir",
        "private/engines",
        "private/engines/gateshare",
    )
    places = [ROOT, *(ROOT / "src" / "deepshare" / room for room in rooms)]
    assert len(named) > 9 and {name for name in named if not any((place / name).exists() for place in places)} == set()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_wrong_commands_are_found() -> None:
    for line in (
        "deepshare plan resnet18 --budgets 6",
        "deepshare share x",
        "make coffee",
        "python dev/none.py",
        "ls",
        "pytest tests/x.py",
    ):
        with pytest.raises(Exception, match=r"budgets|share|coffee|none|nobody"):
            check(line)


def test_the_python_of_own_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(DOCS / "own-model.md") == 4


def test_every_public_name_is_in_the_api() -> None:
    shown = set(re.findall(r"^::: deepshare\.(\S+)", (DOCS / "api.md").read_text(), re.MULTILINE))
    shown |= {name.rpartition(".")[0] for name in shown if name.split(".")[-1:] == name.split(".")[-2:-1]}
    public = {name for name in deepshare.__all__ if name not in ("data", "private", "zoo", "DeepShareError")}
    public |= {f"private.{name}" for name in deepshare.private.__all__}
    public |= {f"zoo.{name}" for name in deepshare.zoo.__all__}
    assert public <= shown


def test_every_method_and_its_recipe_are_on_the_page() -> None:
    page = (DOCS / "comparators.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([^`]+)` \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(methods.names())
    assert {recipe for _, recipe in rows} <= set(names())
