"""Generated parts of the documentation: the tour at build time; lists and tables of results, by running this."""

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from deepshare.study.compare.outcome import Outcomes, read_all
from deepshare.study.compare.page import QUESTIONS, progress, questions
from deepshare.study.compare.plots import main_budget
from deepshare.study.compare.study_file import GELU_TEACHER, TEACHER, Study, load_study
from deepshare.study.compare.tables import MethodRow, best_validation, rows
from deepshare.text import byte_size
from deepshare.training.catalog import list_recipes
from deepshare.training.run.networks import find, names

ROOT = Path(__file__).parents[1]
MAIN_STUDY = "fair"
OURS, RIVALS = "deepshare", ("autorep", "autorep-running")  # the first rival that has a result
PLAIN = "relu"
STARTING = "the starting point of SNL, AutoReP and squares"
UNSTEADY = 3.0  # points below its best epoch from which a method's end says little
SPREAD = "Results of several seeds are a mean ± standard deviation."
SHOWN = {".md", ".svg", ".png", ".json", ".html"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the tour and the contents of results/ as pages."""
    files.append(File.generated(config, "tour.md", content=tour(ROOT / "examples" / "tour.ipynb")))
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in SHOWN:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to the repository by links to pages."""
    markdown = re.sub(r"\]\(\.\./((?:\.\./)*results/)", r"](\1", markdown)
    return markdown.replace("](../examples/tour.ipynb)", "](tour.md)")


def filled(page: str) -> str:
    """Text of a page with every list filled in, each between two marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, made in PAGES[page].items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n\n{made()}\n\n{end}{rest.split(end)[1]}"
    return text


def glance() -> str:
    """The main study in a few lines, for the README."""
    study, data, _, shown = _standings()
    _, outcomes = _main_study()
    ours, rival = (next(row for row in shown if row.method in names) for names in ((OURS,), RIVALS))
    bests = best_validation(study, ours), best_validation(study, rival)
    counts = f"{len(ours.runs)} and {len(rival.runs)}"
    seeds = (
        f"mean ± standard deviation of {counts} seeds" if ours.test.spread or rival.test.spread else f"seeds: {counts}"
    )
    unsteady = f"{words} " if (words := _unsteady(study, rival)) else ""
    plain = [f" All ReLUs have {row.test}%." for row in shown if row.method == PLAIN]
    said = (
        f"With {ours.runs[0].gates:,} of {ours.runs[0].neurons:,} gates {ours.title} has {ours.test}% on test images "
        f"at its end and {bests[0]}% on validation images at its best, "
        f"{rival.title} {rival.test}% and {bests[1]}%.{''.join(plain)} "
        f"{unsteady}{progress(study, outcomes).partition(' Chosen')[0]} "
        f"[ResNet-18 of width 16, CIFAR-100, {study.data[data].title.lower()}, {study.epochs} epochs in all]"
        f"(results/compare/{MAIN_STUDY}/README.md), {seeds}."
    )
    return "\n".join(textwrap.wrap(said, 120, break_on_hyphens=False))


def standings() -> str:
    """Table of the main study at the budget that has most runs, for the page about comparators."""
    *_, shown = _standings()
    study = _main_study()[0]
    lines = [
        "| ResNet-18 of width 16, CIFAR-100 | gates | test, last epoch | validation, best epoch | epochs | seeds |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for row in shown:
        title = f"all ReLUs, {row.epochs} epochs: {STARTING}" if row.method == TEACHER else row.title
        epochs = f"{row.before} + {row.epochs}" if row.before else f"{row.epochs}"
        best = f"{best_validation(study, row)}%"
        lines.append(f"| {title} | {row.gates:,} | {row.test}% | {best} | {epochs} | {len(row.runs)} |")
    return "\n".join([*lines, "", *textwrap.wrap(_caveats(), 120)])


def _standings() -> tuple[Study, str, int, list[MethodRow]]:
    """The study, its first images, its main budget, and rows with all ReLUs and at that budget, the best first."""
    study, outcomes = _main_study()
    data = next(iter(study.data))
    found = [row for row in rows(study, outcomes, data) if row.runs]
    at = main_budget(found)
    full = [row for row in found if _is_full(row) and row.method != GELU_TEACHER]
    rival = next(name for name in RIVALS if any((row.method, row.budget) == (name, at) for row in found))
    drawn = [name for name, entry in study.methods.items() if entry.drawn or name == rival]
    shown = full + [row for row in found if row.budget == at and row.method in drawn]
    return study, data, at, sorted(shown, key=lambda row: -row.test.mean)


def _is_full(row: MethodRow) -> bool:
    return bool(row.gates) and row.budget in (None, row.runs[0].neurons)


def _caveats() -> str:
    """What a reader of these figures has to know."""
    study, data, _, shown = _standings()
    _, outcomes = _main_study()
    said = [
        "A teacher's epochs are not counted: DeepShare from scratch learns from a network with GELUs "
        f"({teacher.epochs} epochs), the others from their starting point."
        for teacher in rows(study, outcomes, data)
        if teacher.method == GELU_TEACHER and teacher.runs
    ]
    finished, _, _ = progress(study, outcomes).partition(" Chosen")
    spread = [SPREAD] if any(len(row.runs) > 1 for row in shown) else []
    said += [finished, *spread, "Differences between single seeds are only indicative."]
    if not any(_is_full(row) and row.epochs == study.epochs for row in shown):
        left = f"The all-ReLU network has not yet been trained for {study.epochs} epochs"
        said.append(f"{left}, so no result here is an upper bound.")
    said += [_unsteady(study, row) for row in shown if row.budget]
    return " ".join(part for part in said if part)


def _unsteady(study: Study, row: MethodRow) -> str:
    """Warning of a method whose last epoch is far below its best; empty for others."""
    best = best_validation(study, row)
    gap = best.mean - row.validation.mean if best else 0.0
    end = f"{row.title} ends {gap:.1f} points below its best on validation images"
    return f"{end}, so its last epoch says little." if gap > UNSTEADY else ""


def answers() -> str:
    """The questions of the main study with their answers so far, for the page about comparators."""
    study, outcomes = _main_study()
    table = questions(study, outcomes)
    lines = [table.header, ["---:" if side == ">" else "---" for side in table.align], *table.lines] if table else []
    shown = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    said = (QUESTIONS, progress(study, outcomes))
    return "\n\n".join([shown, *("\n".join(textwrap.wrap(words, 120)) for words in said)])


@cache
def _main_study() -> tuple[Study, Outcomes]:
    study = load_study(MAIN_STUDY)
    return study, read_all(study, ROOT / "results" / "compare" / MAIN_STUDY)


def recipes() -> str:
    """Table of all recipes with the paper's figures and finished runs, like `deepshare recipes`."""
    listed = list_recipes()
    done = sum(bool(row.runs) for row in listed)
    lines = [f"{done} of {len(listed)} recipes have a record of a run to the end with this code.", ""]
    lines += ["| recipe | what it trains | paper | run here |", "|---|---|---|---|"]
    lines += [f"| `{row.recipe.name}` | {row.recipe.about} | {row.paper} | {row.status} |" for row in listed]
    return "\n".join(lines)


def networks() -> str:
    """Table of the networks by name, with links to their cards, like `deepshare networks`."""
    lines = ["| network | gates | test | size | how trained |", "|---|---|---|---|---|"]
    for network in map(find, names()):
        gates = f"{network.gates:,} of {network.neurons:,}"
        cells = (gates, network.result, byte_size(network.size), network.trained)
        lines.append(f"| [{network.name}](../results/{network.run}/README.md) | {' | '.join(cells)} |")
    return "\n".join(lines)


def results() -> str:
    """Links to every page in results/, cards of networks aside."""
    cards = {ROOT / "results" / find(name).run / "README.md" for name in names()}
    pages = sorted(set((ROOT / "results").rglob("README.md")) - cards)
    return "\n".join(f"- [{_title(page)}](../{page.relative_to(ROOT).as_posix()})" for page in pages)


def tour(notebook: Path) -> str:
    """Render a notebook as a page: text, code and stored output, plots included."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    return "\n\n".join([*parts, "This page is the notebook `examples/tour.ipynb`.\n"])


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        if picture := output.get("data", {}).get("image/png"):
            yield f"![plot](data:image/png;base64,{''.join(picture.split())})"
            continue
        said = "".join(output.get("text") or output["data"]["text/plain"]).rstrip()
        yield f"```text\n{said}\n```"


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/results.md": {"networks": networks, "recipes": recipes, "results": results},
    "docs/comparators.md": {"standings": standings, "answers": answers},
    "README.md": {"glance": glance},
}


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(filled(page), encoding="utf-8")
