"""What a run is called, and what was trained, on what, where and when."""

from deepshare.study.report.markup import Node, node
from deepshare.study.report.run import Run
from deepshare.training.recipe.files import Recipe, differences, load_recipe, names


def title(run: Run) -> str:
    """What the recipe says about itself, or what is true of the run where the recipe was changed."""
    changed = changes(run.recipe)
    # Words of the user's own are about the changes; a seed is in nobody's words.
    if "about" in changed or not changed.keys() - {"seed"}:
        return run.recipe.about
    what, method = f"{network(run.recipe)} on {run.recipe.data.name}", run.recipe.method.name
    if method == "relu":
        return f"The plain {what}"
    whose = "" if method == "deepshare" else f"{method}: "
    return f"{whose}{what} with {100 * run.gates / max(run.neurons, 1):.3g}% of its ReLUs"


def facts(run: Run, name: str | None) -> Node:
    """A list of them; the name is left out where a heading has it."""
    recipe = run.recipe
    where = run.environment.get("gpu") or run.environment.get("cpu") or "an unknown processor"
    found = {
        **({} if name is None else {"run": name}),
        "recipe": recipe.name,
        "method": recipe.method.name,
        "network": network(recipe),
        "data": recipe.data.name,
        "seed": str(recipe.seed),
        "trained on": f"{where}, {run.date}",
    }
    if changed := changes(recipe):
        found["changed in the recipe"] = ", ".join(f"{key} {new}" for key, new in changed.items())
    pairs = (node("div", node("dt", key), node("dd", value)) for key, value in found.items())
    return node("dl", *pairs, class_="facts")


def network(recipe: Recipe) -> str:
    """The network's name with its arguments."""
    arguments = ", ".join(f"{key} {value}" for key, value in recipe.model.arguments.items())
    return f"{recipe.model.name} ({arguments})" if arguments else recipe.model.name


def changes(recipe: Recipe) -> dict[str, object]:
    """What a run changed in a packaged recipe; nothing is known of a recipe of the user's own."""
    changed = differences(load_recipe(recipe.name), recipe) if recipe.name in names() else {}
    return {key: new for key, (_, new) in changed.items()}
