"""The wheel, built from the sdist, installed in an empty environment and run from another folder."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

import deepshare
from tests.installed import ROOT, run

SOURCE = ROOT / "src"


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
