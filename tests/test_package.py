"""The wheel, built from the sdist, installed in an empty environment and run from another folder."""

import io
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

import deepshare

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
pytestmark = pytest.mark.xdist_group("wheel")  # one worker, so that the wheel is built once


def run(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; the libraries that it depends on are lent by this one, not downloaded again.

    The folder of this environment is only put on the path: its own .pth files, and with them the editable install of
    the package under test, are not read.
    """
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=ROOT)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, folder=ROOT)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_everything_in_the_source_is_in_the_wheel(wheel: Path) -> None:
    source = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}
    source = {path for path in source if "__pycache__" not in path}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == source
    assert {"deepshare/py.typed", "deepshare/data/digits.npz", "deepshare/data/digits.md"} <= packed


def test_the_digits_in_the_wheel_are_the_1797_of_uci(wheel: Path) -> None:
    digits = np.load(io.BytesIO(zipfile.ZipFile(wheel).read("deepshare/data/digits.npz")))
    images, labels = digits["images"], digits["labels"]
    assert (images.dtype, images.shape, int(images.max()), int(images.sum())) == (np.uint8, (1797, 8, 8), 16, 561718)
    assert labels.dtype == np.uint8
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_installed_command_runs_from_another_folder(environment: Path, tmp_path: Path) -> None:
    home = run(environment / "python", "-c", "import deepshare; print(deepshare.__file__)", folder=tmp_path)
    assert Path(home.strip()).is_relative_to(environment.parent)
    assert run(environment / "deepshare", "--version", folder=tmp_path) == f"deepshare {deepshare.__version__}\n"
    found = json.loads(run(environment / "deepshare", "inspect", "resnet18", "--json", folder=tmp_path))
    assert (found["neurons"], len(found["sites"])) == (491_520, 16)
    assert not list(tmp_path.iterdir())


def test_the_module_runs_as_the_command_does(environment: Path, tmp_path: Path) -> None:
    said = run(environment / "python", "-m", "deepshare", "--version", folder=tmp_path)
    assert said == f"deepshare {deepshare.__version__}\n"


def test_the_version_is_the_same_everywhere(wheel: Path) -> None:
    assert wheel.name.startswith(f"deepshare-{deepshare.__version__}-")
    assert f"\nversion: {deepshare.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{deepshare.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
