"""The page: what was trained and how good it is, and then each run in full."""

from collections.abc import Sequence
from importlib import resources

from deepshare import __version__
from deepshare.study.published import paper
from deepshare.study.report import heading
from deepshare.study.report.bill import bill
from deepshare.study.report.budget import bars
from deepshare.study.report.cost import ENGINE, sent
from deepshare.study.report.curves import curves
from deepshare.study.report.frontier import chart, frontiers
from deepshare.study.report.markup import Node, node, section, table, to_text
from deepshare.study.report.network import picture
from deepshare.study.report.pictures import pictures
from deepshare.study.report.run import Run, short_names
from deepshare.study.report.scatter import panels
from deepshare.text import byte_size
from deepshare.training.recipe.files import to_toml


def page(runs: Sequence[Run]) -> str:
    """The whole page as HTML, which fetches nothing."""
    style = (resources.files("deepshare.study.report") / "style.css").read_text(encoding="utf-8")
    title = heading.title(runs[0]) if len(runs) == 1 else _title(runs)
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("title", f"{title} \N{MIDDLE DOT} DeepShare"),
        node("style", style),
    )
    main = node("main", *_opening(runs, title))
    for number, (run, name) in enumerate(zip(runs, short_names(runs), strict=True), 1):
        main.append(_whole(run, number, name if len(runs) > 1 else None))
    footer = node("footer", f"Written by deepshare {__version__}.")
    return "<!DOCTYPE html>\n" + to_text(node("html", head, node("body", main, footer), lang="en")) + "\n"


def _title(runs: Sequence[Run]) -> str:
    data = dict.fromkeys(run.recipe.data.name for run in runs)
    return f"{len(runs)} runs on {' and '.join(data)}"


def _opening(runs: Sequence[Run], title: str) -> list[Node]:
    charts = [chart(frontier) for frontier in frontiers(runs)]
    if len(runs) == 1:
        facts = heading.facts(runs[0], short_names(runs)[0])
        return [node("header", node("h1", title), facts), _tiles(runs[0]), *charts]
    return [node("header", node("h1", title)), _comparison(runs), *charts]


def _whole(run: Run, number: int, name: str | None) -> Node:
    """Everything about one run; with several, a heading of its own."""
    opening = [node("h2", name), node("p", heading.title(run)), heading.facts(run, None), _tiles(run)] if name else []
    plan = picture(run.plan, run.pi, trimmed=run.recipe.trimmed) if run.plan else None
    recipe = node("details", node("summary", "The recipe"), node("pre", to_toml(run.recipe)))
    affine = panels(run.affine) if run.plan else None
    parts = (curves(run), plan, bars(run), affine, bill(run, alone=name is None), pictures(run.samples), recipe)
    return node("article", *opening, *parts, id=f"run{number}")


def _tiles(run: Run) -> Node:
    """The few numbers that matter most."""
    where = f"of {run.test['n']:,} test images" if run.test else "of the validation images"
    what = f"{paper.MEASURES[run.measure]}, {where}" if run.measure == "miou" else f"{where} right"
    tiles = [
        (f"{run.score:.2%}", what),
        (f"{run.gates:,}", f"gates of {run.neurons:,} ReLUs ({run.gates / max(run.neurons, 1):.2%})"),
        (f"{run.epochs:,}", _trained(run)),
    ]
    if cost := _cost(run):
        tiles.append((cost[0], f"sent online for one image in {cost[1]} rounds, with {ENGINE}"))
    shown = (node("div", node("strong", number), node("span", words), class_="tile") for number, words in tiles)
    return node("div", *shown, class_="tiles")


def _trained(run: Run) -> str:
    took = f"{_duration(run.result['seconds'])} for the last network"
    return (
        f"epochs without those of its {' and '.join(run.elsewhere)}, {took}"
        if run.elsewhere
        else f"epochs in all, {took}"
    )


def _comparison(runs: Sequence[Run]) -> Node:
    header = ("run", "method", "network", "data", "gates", "of ReLUs", "score", "epochs", "online", "rounds")
    rows = [
        (
            node("a", name, href=f"#run{number}"),
            run.recipe.method.name,
            run.recipe.model.name,
            run.recipe.data.name,
            f"{run.gates:,}",
            f"{run.gates / max(run.neurons, 1):.2%}",
            f"{run.score:.2%}" + ("" if run.test else " (validation)"),
            f"{run.epochs:,}",
            *(_cost(run) or ("-", "-")),
        )
        for number, (run, name) in enumerate(zip(runs, short_names(runs), strict=True), 1)
    ]
    about = f"The score is accuracy, or mIoU for segmentation, on test images; online and rounds are those of {ENGINE}."
    return section("Side by side", about, table(header, rows, "<<<<>>>>>>", class_="comparison"))


def _cost(run: Run) -> tuple[str, str] | None:
    cost = run.predicted if isinstance(run.predicted, str) else run.predicted.costs[ENGINE]
    return None if isinstance(cost, str) else (byte_size(sent(cost.online)), f"{cost.online.rounds:,}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
