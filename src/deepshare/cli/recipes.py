"""`deepshare recipes`: the packaged recipes."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deepshare.cli.options import Json, terminal_width

if TYPE_CHECKING:
    from deepshare.training.catalog import Finished


def recipes(
    name: Annotated[str | None, Parameter(help="Show all keys of this one; each is a flag of train.")] = None,
    /,
    *,
    as_json: Json = False,
) -> None:
    """List the recipes with the results of their finished runs."""
    if name is not None:
        from deepshare.training.recipe.files import load_recipe, to_toml

        recipe = load_recipe(name)
        print(json.dumps(recipe.model_dump(mode="json"), indent=1) if as_json else to_toml(recipe), end="")
        return
    from deepshare.training.catalog import as_table, list_recipes

    rows = list_recipes()
    if not as_json:
        print(as_table(rows, terminal_width()))
        return
    listed = [
        {"recipe": row.recipe.name, "about": row.recipe.about, "paper": row.paper, "runs": _plain(row.runs)}
        for row in rows
    ]
    print(json.dumps(listed, indent=1))


def _plain(runs: "Sequence[Finished]") -> list[dict[str, Any]]:
    return [run.model_dump() for run in runs]
