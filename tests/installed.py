"""The wheel, built from the sdist, and an empty environment in which it is installed."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, folder: Path) -> str:
    """Run a command without this environment's variables for Python; returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; the libraries that it depends on are lent by this one, not downloaded again.

    The folder of this environment is only put on the path: its own .pth files, and with them the editable install of
    the package under test, are not read.
    """
    return make_environment(tmp_path_factory.mktemp("empty"), wheel, Path(sysconfig.get_path("purelib")))


def make_environment(folder: Path, wheel: Path, packages: Path) -> Path:
    """Make an environment with the wheel and what a folder lends; returns its folder of commands."""
    folder = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=ROOT)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, folder=ROOT)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text(f"{packages}\n")
    return folder / "bin"


def lend(folder: Path, *names: str) -> Path:
    """Make a folder of libraries, with all that they require and nothing else of this environment."""
    folder.mkdir()
    wanted, found = list(names), set[str]()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in found:
            continue
        found.add(name)
        library = distribution(name)
        for top in {file.parts[0] for file in library.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (folder / top).symlink_to(str(library.locate_file(top)))
        for line in library.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    return folder
