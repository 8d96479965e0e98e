"""Guides followed literally: their files written and their changes made in a copy of the source tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

FENCE = re.compile(r'^```(python|toml|diff) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def copy_tree(copy: Path) -> None:
    """Copy all that guides change and their tests need."""
    for name in ("src", "tests", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)


def follow(guide: Path, copy: Path) -> list[str]:
    """Do what a guide says in a copy of the tree, and return the paths of the tests that it adds or changes."""
    tests = []
    for language, path, block in FENCE.findall(guide.read_text("utf-8")):
        if language == "diff":
            change(copy / path, block)
        else:  # a file that was kept must be the guide's to the letter
            kept = (copy / path).read_text("utf-8") if (copy / path).exists() else block
            assert kept == block, f"{path} is not as {guide.name} writes it"
            (copy / path).write_text(block, "utf-8")
        tests += [path] if path.startswith("tests/") else []
    return tests


def change(path: Path, block: str) -> None:
    """Make the changes of a diff block, whose parts are separated by @@ and stand once in the file."""
    text = path.read_text("utf-8")
    for part in block.split("@@\n"):
        lines = part.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{path.name} has this not once:\n{before}"
        text = text.replace(before, after)
    path.write_text(text, "utf-8")


def run_tests(copy: Path, tests: list[str]) -> str:
    """Run tests of a copy with the package of that copy, and return what they print."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
