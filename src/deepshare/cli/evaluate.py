"""`deepshare eval`: accuracy of a finished run on its test images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from deepshare.cli.options import Flag, Json, RunArgument
from deepshare.errors import DataError


def evaluate(
    run: RunArgument,
    /,
    *,
    data_dir: Path | None = None,
    best: Flag = False,
    evaluation: Literal["whole", "sliding"] | None = None,
    batch: int = 256,
    as_json: Json = False,
) -> None:
    """Evaluate the network of a finished run on the test images of its data set.

    Args:
        data_dir: Folder of data sets.
        best: Use the weights with the best validation score instead of the last.
        evaluation: For segmentation: count pixels at the masks' own size, with logits of the whole image resized, or
            averaged over overlapping crops; by default that of the recipe.
        batch: Batch size.
    """
    from deepshare.sharing.convert import count_gates
    from deepshare.training.build import load
    from deepshare.training.data_source import make_data_source
    from deepshare.training.recipe.files import changed, load_recipe
    from deepshare.training.run.folder import RunFolder, run_folder

    run = run_folder(run)
    network = load(run, best=best)
    recipe = load_recipe(RunFolder(run).recipe)
    if evaluation:
        recipe = changed(recipe, {"data.evaluation": evaluation})
    source = make_data_source(None, recipe, data_dir)
    result = source.test(network, batch)
    if result is None:
        raise DataError(f"{recipe.data.name} has no test images")
    gates = count_gates(network, source.input_size)
    how = recipe.data.evaluation
    figures = {key: value for key, value in asdict(result).items() if value is not None}
    if as_json:
        said = {"run": str(run), "gates": gates, **figures}
        print(json.dumps(said | {"evaluation": how} if how else said))
    else:
        scores = ", ".join(f"{key} {figures[key]:.2%}" for key in ("accuracy", "miou") if key in figures)
        images = f"{result.n:,} images" + (f", {how}" if how else "")
        print(f"{run}: {scores} on {images}, loss {result.loss:.4f}, {gates:,} gates")
