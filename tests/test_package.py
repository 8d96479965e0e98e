"""The wheel, built from the sdist, installed in an empty environment and run from another folder."""

import io
import json
import re
import subprocess
import zipfile
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deepshare
from deepshare.private.ir.program import Program
from tests.docs.pages import blocks, shell_lines
from tests.installed import ROOT, lend, make_environment, run
from tests.private.remote.attacked import deal, network
from tests.private.remote.running import Running

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


def test_what_the_readme_computes_privately_runs_after_a_plain_install(wheel: Path, tmp_path: Path) -> None:
    """With what the package requires, and without extras, CrypTen or the tools of this environment."""
    first, private = (block[1] for block in blocks(ROOT / "README.md", "python"))
    first = "".join(line for line in first.splitlines(keepends=True) if "export_onnx" not in line)  # an extra
    (tmp_path / "program.py").write_text(first + private)  # a file: parties are processes, which import it
    required = [requirement for requirement in requires("deepshare") or () if "extra ==" not in requirement]
    packages = lend(tmp_path / "lent", *(re.match(r"[\w-]+", one)[0] for one in required))  # type: ignore[index]
    python = make_environment(tmp_path, wheel, packages) / "python"
    assert "comparisons" in run(python, "program.py", folder=tmp_path)
    assert run(python, "-c", "import importlib.util as i; print(i.find_spec('crypten'))", folder=tmp_path) == "None\n"


def test_a_client_needs_what_the_page_says(wheel: Path, tmp_path: Path, program: Program) -> None:
    """It asks a server, and looks for a dealer, with the libraries of docs/private.md and what these require."""
    line = next(line for line in shell_lines(ROOT / "docs/private.md") if line.startswith("pip install cryptography"))
    packages = lend(tmp_path / "lent", *line.split()[2:])
    assert not (packages / "safetensors").exists() and not (packages / "matplotlib").exists()
    commands = make_environment(tmp_path, wheel, packages)
    deal(tmp_path / "dealt", images=2, clients=1)
    Image.new("RGB", (8, 8), (9, 90, 200)).save(tmp_path / "a.png")
    running = Running(program, tmp_path / "dealt/keys", pools=[tmp_path / "dealt/server"])
    keys = ("--tls", tmp_path / "dealt/keys/client")
    try:
        ask = ("private", "ask", "a.png", "--server", running.address, "--pool", tmp_path / "dealt/client", *keys)
        assert run(commands / "deepshare", *ask, folder=tmp_path).startswith("a.png")
    finally:
        running.stop()
    fill = ("private", "pool", "fill", "mine", "--dealer", "127.0.0.1:9", *keys)
    done = subprocess.run(
        [commands / "deepshare", *fill], cwd=tmp_path, capture_output=True, text=True, env={"HOME": str(tmp_path)}
    )
    assert done.returncode == 2 and "no dealer at 127.0.0.1:9" in done.stderr, done.stderr


@pytest.fixture
def program() -> Program:
    return network()


def test_the_module_runs_as_the_command_does(environment: Path, tmp_path: Path) -> None:
    said = run(environment / "python", "-m", "deepshare", "--version", folder=tmp_path)
    assert said == f"deepshare {deepshare.__version__}\n"


def test_the_version_is_the_same_everywhere(wheel: Path) -> None:
    assert wheel.name.startswith(f"deepshare-{deepshare.__version__}-")
    assert f"\nversion: {deepshare.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{deepshare.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
