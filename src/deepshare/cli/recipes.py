"""`deepshare recipes`: what can be trained by name."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepshare.cli.options import Json

if TYPE_CHECKING:
    from deepshare.training.listing import Finished


def recipes(*, as_json: Json = False) -> None:
    """List the recipes, and say which were run to the end: where, and with what result."""
    from deepshare.training.listing import as_table, list_recipes

    rows = list_recipes()
    if not as_json:
        print(as_table(rows))
        return
    listed = [
        {"recipe": row.recipe.name, "about": row.recipe.about, "paper": row.paper, "runs": _plain(row.runs)}
        for row in rows
    ]
    print(json.dumps(listed, indent=1))


def _plain(runs: "Sequence[Finished]") -> list[dict[str, Any]]:
    return [run.model_dump() for run in runs]
