"""Generated parts of the site: figures, results and the tour."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from deepshare.training.catalog import NOT_RUN, list_recipes
from dev import docs_figures, docs_hooks

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "examples" / "tour.ipynb"


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


def test_the_lists_of_the_page_are_up_to_date() -> None:
    page = docs_hooks.PAGE.read_text(encoding="utf-8")
    assert page == docs_hooks.filled(page), "python dev/docs_hooks.py writes them"
    assert "{{" not in page


def test_the_tour_is_a_page() -> None:
    cells = json.loads(TOUR.read_text())["cells"]
    page = docs_hooks.tour(TOUR)
    assert page.startswith("# A tour\n")
    assert page.count("```python\n") == sum(cell["cell_type"] == "code" for cell in cells)
    assert "96 gates instead of 1,920 (5.00%)" in page
    assert page.count("](data:image/png;base64,") == 5


def test_the_tour_shows_what_is_committed_in_less_than_three_minutes(tmp_path: Path) -> None:
    notebook, committed = (nbformat.read(TOUR, as_version=4) for _ in range(2))
    # Time of the processor rather than of the clock, which other work on the machine would slow down.
    asked = "import os; used = os.times(); print(used.user + used.system + used.children_user + used.children_system)"
    notebook.cells.append(nbformat.v4.new_code_cell(asked))
    NotebookClient(
        notebook, kernel_name="python3", timeout=900, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert float(notebook.cells[-1].outputs[0].text) < 180
    assert (tmp_path / "runs" / "tour" / "result.json").is_file()
    for cell, before in zip(notebook.cells, committed.cells, strict=False):
        assert kinds(cell) == kinds(before), before.source
        if "exact" in before.metadata.get("tags", ()):  # others show accuracies and times
            assert [dict(output) for output in cell.outputs] == [dict(output) for output in before.outputs]


def kinds(cell: nbformat.NotebookNode) -> list[list[str]]:
    """What a cell shows: streams by name, other outputs by their types."""
    return [sorted(output.get("data", [output.get("name")])) for output in cell.get("outputs", [])]
