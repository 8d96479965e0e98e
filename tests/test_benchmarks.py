"""Every benchmark works: at a tiny size, as a command, with the flags that pages name."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepshare import zoo
from deepshare.sharing.sites import find_sites
from tests.docs.pages import DOCS, ROOT

FOLDER = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "results").rglob("README.md")]
SCRIPTS = sorted(file.name for file in FOLDER.glob("*.py") if "ArgumentParser" in file.read_text("utf-8"))
NEEDED = {
    "clients.py": ["--dealer"],
    "flips.py": ["results/networks/digits-resnet10-192"],
    "fidelity.py": ["results/networks/digits-resnet10-192", "--engine", "gateshare"],
    "two_party.py": ["--engines", "gateshare"],  # the others take minutes, and have a slow test below
    "xor_settings.py": ["--out", "{folder}"],
}


def documented() -> list[str]:
    """All commands of pages that run a benchmark, and those in the benchmarks' own descriptions."""
    texts = [page.read_text("utf-8") for page in [*PAGES, *FOLDER.glob("*.py")]]
    found = {match for text in texts for match in re.findall(r'python\s+(benchmarks/\w+\.py[^`#\n\["]*)', text)}
    return sorted({command.strip() for command in found})


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [word.format(folder=folder) for word in arguments]
    return subprocess.run(
        [sys.executable, f"benchmarks/{script}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs_at_a_tiny_size(script: str, tmp_path: Path) -> None:
    if script in ("gateshare.py", "latency.py") and find_spec("crypten") is None:
        pytest.skip("crypten is not installed")
    as_json = ["--json"] if '"--json"' in (FOLDER / script).read_text("utf-8") else []
    done = run(script, *NEEDED.get(script, []), "--tiny", *as_json, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if as_json:
        json.loads(done.stdout)


@pytest.mark.parametrize("command", documented())
def test_a_documented_benchmark_has_its_flags(command: str) -> None:
    path, *words = shlex.split(command)
    source = (ROOT / path).read_text("utf-8")
    flags = {word for word in words if word.startswith("--")} - {"--help"}  # argparse's own
    assert [flag for flag in flags if f'"{flag}"' not in source] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", documented())
def test_a_documented_benchmark_runs_at_a_tiny_size(command: str, tmp_path: Path) -> None:
    path, *words = shlex.split(command)
    network = "results/networks/digits-resnet10-192"
    words = [network if word in ("RUN", "runs/demo/shared") else word for word in words]
    words = [str(tmp_path / "out") if word.startswith(("docs/", "results/xor")) else word for word in words]
    if path.endswith("xor_settings.py"):
        (tmp_path / "out").mkdir()
    if "--data-dir" in words:
        pytest.skip("needs a data set: " + command)
    done = run(Path(path).name, *words, "--tiny", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_masks_of_the_latency_table_are_like_trained_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    latency = importlib.import_module("latency")
    small = list(find_sites(zoo.build(latency.SMALL.network, **latency.SMALL.arguments), latency.SMALL.size))
    for kind, empty in (("SNL", 7), ("AutoReP", 1)):
        trained = latency.site_counts(latency.SMALL, kind, 2_288, small, 2_288)
        assert sum(trained) == 2_288 and trained.count(0) == empty
        for setup in latency.PAPER:
            sites = list(find_sites(zoo.build(setup.network, **setup.arguments), setup.size))
            for budget in setup.budgets:
                counts = latency.site_counts(setup, kind, budget, sites, budget)
                assert sum(counts) == budget
                assert all(0 <= count <= site.neurons for count, site in zip(counts, sites, strict=True))
                if len(sites) == len(small):  # the same sites, wider: empty where the trained network is
                    assert [count == 0 for count in counts] == [count == 0 for count in trained]
                masks = latency.draw(sites, counts)
                assert [int(mask.sum()) for mask in masks.values()] == counts
