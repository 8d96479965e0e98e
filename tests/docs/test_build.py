"""Generated parts of the site: figures, results and the tour."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from deepshare.study.compare.study_file import TEACHER, Job, load_study
from deepshare.training.catalog import NOT_RUN, list_recipes
from dev import docs_figures, docs_hooks
from tests.study.compare.made_outcomes import finished

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "examples" / "tour.ipynb"
# Parties that are threads, fewer epochs, and engine crypten, which takes longest, as where it is not installed.
SHORTER = {
    "import deepshare\n": (
        f"import sys; sys.path.append({str(ROOT)!r})\nimport deepshare, pytest\n"
        "from tests.private.runtime.threads import run_parties_as_threads\n"
        "run_parties_as_threads(pytest.MonkeyPatch())\n"
    ),
    '"gelu.epochs": 8, "switch.epochs": 6, "finetune.epochs": 4': (
        '"gelu.epochs": 4, "switch.epochs": 3, "finetune.epochs": 2'
    ),
    "for (engine, name), cost in costs.items():": (
        "for (engine, name), cost in ((k, v) for k, v in costs.items() if k[0] != 'crypten'):"
    ),
}


@pytest.mark.parametrize("name", docs_figures.FIGURES)
def test_a_figure_is_what_its_script_draws(name: str) -> None:
    assert without_ids(docs_figures.draw(name)) == without_ids((ROOT / "docs" / "figures" / f"{name}.svg").read_bytes())


def without_ids(figure: bytes) -> bytes:
    """Clip paths are named by their places, whose last digit is another one on another processor."""
    return re.sub(rb"\bp[0-9a-f]{10}\b", b"p", figure)


def test_every_recipe_is_listed_with_its_state() -> None:
    listed = list_recipes()
    page = docs_hooks.recipes()
    assert page.count("\n| `") == len(listed)
    assert page.count(NOT_RUN) == sum(not row.runs for row in listed)
    assert page.startswith(f"{sum(bool(row.runs) for row in listed)} of {len(listed)} recipes")


def test_every_page_of_results_is_linked() -> None:
    links = docs_hooks.results().splitlines()
    assert "- [The checkerboard with a single gate](../results/xor/README.md)" in links
    cards = re.findall(r"\(\.\./results/(\S+)\)", docs_hooks.networks())
    pages = {str(page.relative_to(ROOT / "results")) for page in (ROOT / "results").rglob("README.md")}
    assert pages == {*cards, *(link.partition("(../results/")[2].rstrip(")") for link in links)}
    assert len(pages) == len(cards) + len(links)


@pytest.mark.parametrize("page", docs_hooks.PAGES)
def test_the_lists_of_a_page_are_up_to_date(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == docs_hooks.filled(page), "python dev/docs_hooks.py writes them"
    assert "{{" not in text


def test_the_tour_is_a_page() -> None:
    cells = json.loads(TOUR.read_text())["cells"]
    page = docs_hooks.tour(TOUR)
    assert page.startswith("# A tour\n")
    assert page.count("```python\n") == sum(cell["cell_type"] == "code" for cell in cells)
    assert "96 gates instead of 1,920 (5.00%)" in page
    assert page.count("](data:image/png;base64,") == 5


def test_the_tour_in_short_shows_what_is_committed(tmp_path: Path) -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    for long, short in SHORTER.items():
        (cell,) = (cell for cell in notebook.cells if long in cell.source)
        cell.source = cell.source.replace(long, short)
    execute(notebook, tmp_path)


@pytest.mark.slow
def test_the_tour_takes_less_than_three_minutes(tmp_path: Path) -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    # Time of the processor rather than of the clock, which other work on the machine would slow down.
    asked = "import os; used = os.times(); print(used.user + used.system + used.children_user + used.children_system)"
    notebook.cells.append(nbformat.v4.new_code_cell(asked))
    execute(notebook, tmp_path)
    assert float(notebook.cells[-1].outputs[0].text) < 180


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run a notebook, whose assertions must hold, and compare it with the tour that is committed."""
    NotebookClient(
        notebook, kernel_name="python3", timeout=900, resources={"metadata": {"path": str(folder)}}
    ).execute()
    assert (folder / "runs" / "tour" / "result.json").is_file()
    for cell, before in zip(notebook.cells, nbformat.read(TOUR, as_version=4).cells, strict=False):
        assert kinds(cell) == kinds(before), before.source
        if "exact" in before.metadata.get("tags", ()):  # others show accuracies and times
            assert [dict(output) for output in cell.outputs] == [dict(output) for output in before.outputs]


def kinds(cell: nbformat.NotebookNode) -> list[list[str]]:
    """What a cell shows: streams by name, other outputs by their types."""
    return [sorted(output.get("data", [output.get("name")])) for output in cell.get("outputs", [])]


def test_more_seeds_and_ceilings_only_change_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(docs_hooks.MAIN_STUDY)
    jobs = [Job(name, "subset", 2288, seed) for name in ("deepshare", "autorep") for seed in range(3)]
    jobs += [Job(TEACHER, "subset"), Job("relu", "subset"), Job("quadratics", "subset", 0)]
    curve = {"search": [80.0], "finetune": [49.0, 40.0]}
    made = {job: finished(study, job, 44.0 + job.seed + (job.method == "deepshare"), curve=curve) for job in jobs}
    monkeypatch.setattr(docs_hooks, "_main_study", lambda: (study, made))
    page, short = docs_hooks.standings(), " ".join(docs_hooks.glance().split())
    assert "| DeepShare | 2,288 | 46.00 ± 1.00% | 49.00 ± 0.00% |" in page
    assert "epochs: the starting point of SNL, AutoReP and squares" in page and "all ReLUs, plain training" in page
    assert "gates DeepShare has 46.00 ± 1.00% on test images at its end and 49.00 ± 0.00% on valid" in short
    assert (
        "AutoReP 45.00 ± 1.00% and 49.00 ± 0.00%. All ReLUs have 44.00%." in short
        and len(docs_hooks.glance().splitlines()) <= 4
    )
    said = "AutoReP ends 5.0 points below its best on validation images, so its last epoch says little."
    for text in (" ".join(page.split()), short):
        assert said in text and "upper bound" not in text and "mean ± standard deviation" in text
    del made[Job("relu", "subset")], made[Job(TEACHER, "subset")]
    assert "has not yet been trained for 60 epochs, so no result here is an upper bound." in " ".join(
        docs_hooks.standings().split()
    )
    answers = docs_hooks.answers()
    assert "| DeepShare from scratch over AutoReP | 2,288 | +1.00 ± 0.82 | +0.00 ± 0.00 | 3 and 3 |" in answers


def test_while_a_rival_is_open_its_first_run_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(docs_hooks.MAIN_STUDY)
    jobs = [Job(name, "subset", 2288) for name in ("deepshare", "autorep-running")]
    made = {job: finished(study, job, 44.0, curve={"finetune": [43.0]}) for job in jobs}
    monkeypatch.setattr(docs_hooks, "_main_study", lambda: (study, made))
    assert "AutoReP with running BatchNorm 44.00% and 43.00%." in " ".join(docs_hooks.glance().split())
    assert "| AutoReP with running BatchNorm | 2,288 | 44.00% | 43.00% |" in docs_hooks.standings()
