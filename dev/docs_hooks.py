"""Generated parts of the documentation: the tour at build time; lists of docs/results.md, which running this writes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from deepshare.text import byte_size
from deepshare.training.catalog import list_recipes
from deepshare.training.run.networks import find, names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
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


def filled(text: str) -> str:
    """Fill in every list of a page, each between two marks."""
    lists: dict[str, Callable[[], str]] = {"networks": networks, "recipes": recipes, "results": results}
    for name, made in lists.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n\n{made()}\n\n{end}{rest.split(end)[1]}"
    return text


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


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
