"""The HTML page: an overview of all runs, then each run in full."""

from collections.abc import Sequence
from importlib import resources

from deepshare import __version__
from deepshare.study.published import paper
from deepshare.study.report.affine_panels import affine_section
from deepshare.study.report.curves import curves_section
from deepshare.study.report.frontier import frontier_section, frontiers
from deepshare.study.report.gate_budget import budget_section
from deepshare.study.report.markup import Node, node, section, table, to_text
from deepshare.study.report.plan_picture import plan_section
from deepshare.study.report.predictions import predictions_section
from deepshare.study.report.private_cost import HEADLINE, cost_section, sent
from deepshare.study.report.run import Run, short_names
from deepshare.text import byte_size
from deepshare.training.recipe.files import Recipe, differences, load_recipe, names, to_toml

FEW = 12  # more changes to a recipe than this are counted and not listed


def page(runs: Sequence[Run]) -> str:
    """Render the page as self-contained HTML."""
    style = (resources.files("deepshare.study.report") / "style.css").read_text(encoding="utf-8")
    title = _title(runs[0]) if len(runs) == 1 else _joint_title(runs)
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


def _joint_title(runs: Sequence[Run]) -> str:
    data = dict.fromkeys(run.recipe.data.name for run in runs)
    return f"{len(runs)} runs on {' and '.join(data)}"


def _opening(runs: Sequence[Run], title: str) -> list[Node]:
    # A lone point shows nothing.
    charts = [frontier_section(one) for one in frontiers(runs) if len(runs) > 1 or one.tables]
    if len(runs) == 1:
        facts = _facts(runs[0], short_names(runs)[0])
        return [node("header", node("h1", title), facts), _tiles(runs[0]), *charts]
    return [node("header", node("h1", title)), _comparison(runs), *charts]


def _title(run: Run) -> str:
    """Description in the recipe, or one built from the run where the recipe was changed."""
    changed = _changes(run.recipe)
    # A description of the user's own covers the changes; no description mentions the seed.
    if "about" in changed or not changed.keys() - {"seed"}:
        return run.recipe.about
    what, method = f"{_network(run.recipe)} on {run.recipe.data.name}", run.recipe.method.name
    if run.recipe.is_plain:
        return f"The plain {what}"
    whose = "" if method == "deepshare" else f"{method}: "
    return f"{whose}{what} with {100 * run.gates / max(run.neurons, 1):.3g}% of its ReLUs"


def _facts(run: Run, name: str | None) -> Node:
    """List of facts about a run; `name` is None where a heading has it."""
    recipe = run.recipe
    where = run.environment.get("gpu") or run.environment.get("cpu") or "an unknown processor"
    found = {
        **({} if name is None else {"run": name}),
        "recipe": recipe.name,
        "method": recipe.method.name,
        "network": _network(recipe),
        "data": recipe.data.name,
        "seed": str(recipe.seed),
        "trained on": f"{where}, {run.date}" if run.date else where,
    }
    if changed := _changes(recipe):
        few = ", ".join(f"{key} {new}" for key, new in changed.items())
        found["changed in the recipe"] = few if len(changed) <= FEW else f"{len(changed)} keys: it is below in full"
    pairs = (node("div", node("dt", key), node("dd", value)) for key, value in found.items())
    return node("dl", *pairs, class_="facts")


def _network(recipe: Recipe) -> str:
    """Name of the network with its arguments."""
    arguments = ", ".join(f"{key} {value}" for key, value in recipe.model.arguments.items())
    return f"{recipe.model.name} ({arguments})" if arguments else recipe.model.name


def _changes(recipe: Recipe) -> dict[str, object]:
    """Changes of a run to a packaged recipe; empty for a recipe of the user's own."""
    changed = differences(load_recipe(recipe.name), recipe) if recipe.name in names() else {}
    return {key: new for key, (_, new) in changed.items()}


def _whole(run: Run, number: int, name: str | None) -> Node:
    """All sections of one run; with several runs, under a heading of its own."""
    opening = [node("h2", name), node("p", _title(run)), _facts(run, None), _tiles(run)] if name else []
    trimmed = not run.recipe.method_class.has_replicates(run.recipe)
    parts = (
        curves_section(run),
        plan_section(run.plan, run.pi, trimmed=trimmed) if run.plan else None,
        budget_section(run),
        affine_section(run.affine) if run.plan else None,
        cost_section(run.predicted, run.measured, alone=name is None),
        predictions_section(run.samples),
        node("details", node("summary", "The recipe"), node("pre", to_toml(run.recipe))),
    )
    return node("article", *opening, *parts, id=f"run{number}")


def _tiles(run: Run) -> Node:
    """Tiles with the key figures."""
    where = f"of {run.test['n']:,} test images" if run.test else "of the validation images"
    what = f"{paper.MEASURES[run.measure]}, {where}" if run.measure == "miou" else f"{where} right"
    tiles = [
        (f"{run.score:.2%}", what),
        (f"{run.gates:,}", f"gates of {run.neurons:,} ReLUs ({run.gates / max(run.neurons, 1):.2%})"),
        (f"{run.epochs:,}", _trained(run)),
    ]
    if cost := _cost(run):
        tiles.append((cost[0], f"sent online for one image in {cost[1]} rounds, with {HEADLINE}"))
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
    about = (
        f"The score is accuracy, or mIoU for segmentation, on test images; online and rounds are those of {HEADLINE}."
    )
    return section("Side by side", about, table(header, rows, "<<<<>>>>>>", class_="comparison"))


def _cost(run: Run) -> tuple[str, str] | None:
    cost = run.predicted if isinstance(run.predicted, str) else run.predicted.costs[HEADLINE]
    return None if isinstance(cost, str) else (byte_size(sent(cost.online)), f"{cost.online.rounds:,}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
