"""Workflows, templates and hooks of the repository: every command and path in them exists."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
yaml: Any = pytest.importorskip("yaml", reason="PyYAML comes with the documentation's tools")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def steps(job: str) -> list[dict[str, Any]]:
    return list(read(".github/workflows/ci.yml")["jobs"][job]["steps"])


def commands(job: str) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


def test_ci_runs_what_the_script_runs() -> None:
    *_, last = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert commands("test") == [last] == ["make test"]


def test_targets_extras_and_folders_of_ci_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = [line for job in ("test", "elsewhere", "docs") for line in commands(job)]
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    folders = [word for line in lines for word in line.split() if word.startswith("tests/")]
    assert folders and all((ROOT / folder).is_dir() for folder in folders)
    (extras,) = (found[1] for line in lines if (found := re.search(r"\.\[(.+)\]", line)))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(re.search(rf"^{extra} = ", project, re.MULTILINE) for extra in extras.split(","))
    keys = [step["with"]["cache-dependency-path"] for job in ("test", "elsewhere", "docs") for step in steps(job)[1:2]]
    assert all((ROOT / name).is_file() for key in keys for name in key.split())


def test_workflows_may_only_read_and_keep_no_credentials() -> None:
    workflow = read(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"]:
        checkout, *others = steps(job)
        assert checkout["with"] == {"persist-credentials": False}
        assert all(re.search(r"@(v\d+|[0-9a-f]{40})$", step["uses"]) for step in (checkout, *others) if "uses" in step)


def test_forms_for_issues_have_questions_of_their_own() -> None:
    for name in ("bug", "feature", "question"):
        form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
        asked = [question["id"] for question in form["body"] if question["type"] != "markdown"]
        assert form["name"] and form["description"] and len(asked) == len(set(asked)) > 0


def test_hooks_before_a_commit_check_the_folders_that_make_checks() -> None:
    entries = [hook["entry"].split() for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"]]
    assert [Path(entry[0]).name for entry in entries] == ["ruff", "ruff", "mypy", "git"]
    (checked,) = re.findall(r"^CODE := \$\(wildcard (.*)\)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert entries[2][1:] == checked.split()
