"""`deepshare eval`: a finished run on its test images."""

import json
from dataclasses import asdict
from pathlib import Path

from deepshare.cli.options import Flag, Json
from deepshare.errors import DataError


def evaluate(
    run: Path,
    /,
    *,
    data_dir: Path | None = None,
    best: Flag = False,
    batch: int = 256,
    as_json: Json = False,
) -> None:
    """Evaluate the network of a finished run on the test images of its data set.

    Args:
        run: The run folder.
        data_dir: Where data sets are.
        best: Take the weights that were best on the validation images instead of the last.
        batch: Images at a time.
    """
    from deepshare.sharing.convert import count_gates
    from deepshare.training.feed import make_feed
    from deepshare.training.folder import RunFolder
    from deepshare.training.networks import load
    from deepshare.training.recipe import load_recipe

    network = load(run, best=best)
    recipe = load_recipe(RunFolder(run).recipe)
    feed = make_feed(None, recipe, data_dir)
    result = feed.test(network, batch)
    if result is None:
        raise DataError(f"{recipe.data.name} has no test images")
    gates = count_gates(network, feed.input_size)
    figures = {key: value for key, value in asdict(result).items() if value is not None}
    if as_json:
        print(json.dumps({"run": str(run), "gates": gates, **figures}))
    else:
        said = ", ".join(f"{key} {figures[key]:.2%}" for key in ("accuracy", "miou") if key in figures)
        print(f"{run}: {said} on {result.n:,} images, loss {result.loss:.4f}, {gates:,} gates")
