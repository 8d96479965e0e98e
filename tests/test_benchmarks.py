"""Every benchmark works: at a tiny size, with the flags that pages name."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.sharing.sites import find_sites
from dev.measured.catalog import MEASUREMENTS
from dev.measured.page import PARTS, Part
from tests.docs.pages import DOCS, ROOT

FOLDER = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "results").rglob("README.md")]
SCRIPTS = sorted(file.name for file in FOLDER.glob("*.py") if "ArgumentParser" in file.read_text("utf-8"))
NEEDED = {
    "clients.py": ["--dealer"],
    "flips.py": ["results/networks/digits-resnet10-192"],
    "fidelity.py": ["results/networks/digits-resnet10-192", "--engine", "gateshare"],
    # Of these, other engines take longer, and have a slow test below.
    "gateshare.py": ["--peers", "relu", "squares", "stock"],
    "latency.py": ["--engine", "gateshare"],
    "two_party.py": ["--engines", "gateshare"],
    # More threads than cores would wait for each other, busily.
    "training_loop.py": ["--threads", "1"],
    "training_step.py": ["--threads", "1"],
    "xor_settings.py": ["--out", "{folder}"],
}
# `--shell` of clients.py prints times of calls; fidelity.py has other figures with `--clear`.
OTHER_FIGURES = {"ask", "bits-1536-all", "fidelity-2pc", "fidelity-parties-gateshare-2pc"}
# These start processes that import the script, or measure whole processes.
PROCESSES = ("clients.py", "imagenet.py", "soak.py", "transport.py")


def documented() -> list[str]:
    """All commands of pages that run a benchmark, and those in the benchmarks' own descriptions."""
    texts = [page.read_text("utf-8") for page in [*PAGES, *FOLDER.glob("*.py")]]
    found = {match for text in texts for match in re.findall(r'python\s+(benchmarks/\w+\.py[^`#\n\["]*)', text)}
    return sorted({command.strip() for command in found})


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a command."""
    return subprocess.run(
        [sys.executable, f"benchmarks/{script}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )


@pytest.fixture
def run_inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], parties_are_threads: None
) -> Iterator[Callable[..., str]]:
    """Run a benchmark as a command would, in this process, which has imported torch; returns what it prints."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(FOLDER))
    threads = torch.get_num_threads()

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{script}", *arguments])
        code: object = 0
        try:
            runpy.run_path(str(FOLDER / script), run_name="__main__")
        except SystemExit as end:
            code = end.code
        assert not code, code
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs_at_a_tiny_size(script: str, run_inside: Callable[..., str], tmp_path: Path) -> None:
    if script == "gateshare.py" and find_spec("crypten") is None:
        pytest.skip("crypten is not installed")
    arguments = [word.format(folder=tmp_path) for word in NEEDED.get(script, [])] + ["--tiny"]
    if as_json := '"--json"' in (FOLDER / script).read_text("utf-8"):
        arguments.append("--json")
    if script in PROCESSES:
        done = run(script, *arguments)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    else:
        said = run_inside(script, *arguments)
    assert said.strip()
    if as_json:
        figures = json.loads(said)
        for name, part in parts_of(script):
            assert part.write({name: figures}), f"the part of the page that shows {name} is empty"


def parts_of(script: str) -> list[tuple[str, Part]]:
    """Parts of pages that show a benchmark by itself: none with arguments that change what it prints."""
    names = {one.name for one in MEASUREMENTS if one.command.split()[0].endswith(f"/{script}")}
    return [(part.names[0], part) for part in PARTS.values() if part.names[0] in names - OTHER_FIGURES]


@pytest.mark.parametrize("command", documented())
def test_a_documented_benchmark_has_its_flags(command: str) -> None:
    path, *words = shlex.split(command)
    source = (ROOT / path).read_text("utf-8")
    flags = {word for word in words if word.startswith("--")} - {"--help"}  # argparse's own
    assert [flag for flag in flags if f'"{flag}"' not in source] == []


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
def test_avx512_is_hidden_from_a_benchmark_and_its_parties(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(
        "import sys\nimport avx512\nimport torch\navx512.hide(True)\n"
        "print(sys.argv[1], torch.backends.cpu.get_cpu_capability())\nsys.exit(3)\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bench.py"), "--link"],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and done.stdout.startswith("--link ") and "AVX512" not in done.stdout, done.stderr


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
    done = run(Path(path).name, *words, "--tiny")
    assert done.returncode == 0, done.stderr


def test_fidelity_goes_on_with_the_images_that_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    fidelity = importlib.import_module("fidelity")
    program = translate(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))
    images, asked = torch.randn(5, 1, 2, 2), list[int]()

    def run(_: Program, part: Tensor, *__: object) -> SimpleNamespace:
        if len(asked) == 1:
            asked.append(0)
            raise KeyboardInterrupt
        asked.append(len(part))
        return SimpleNamespace(logits=program.evaluate(part))

    monkeypatch.setattr(fidelity, "run", run)
    keep = tmp_path / "folder" / "logits.safetensors"
    with pytest.raises(KeyboardInterrupt):
        fidelity.privately(program, images, "gateshare", {}, 2, keep)
    assert torch.equal(fidelity.privately(program, images, "gateshare", {}, 2, keep), program.evaluate(images))
    assert asked == [2, 0, 2, 1]
    monkeypatch.setattr(fidelity, "commit", lambda: "another")
    fidelity.privately(program, images, "gateshare", {}, 5, keep)
    assert asked[-1] == 5


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
