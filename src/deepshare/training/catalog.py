"""The packaged recipes, with the finished runs of each.

A finished run is recorded as one small JSON file in `results/`, read from its run folder by `record`. A recipe without
such a file was not run to the end.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from deepshare.errors import CheckpointError, RecipeError
from deepshare.text import table
from deepshare.training.recipe.files import Recipe, differences, load_recipe, names
from deepshare.training.recipe.schema import Section
from deepshare.training.run.folder import RunFolder, best_line, own_lines, read_environment

NOT_RUN = "not run to the end"


class BestEpoch(Section):
    """The epoch of the last phase with the highest validation score, among those with no more gates than in the end.

    Attributes:
        epoch: Number of the epoch, from 1.
        validation: Score on the validation images, in percent.
        test: Score on the test images, in percent; None where the best weights that were kept are of another epoch, as
            in early runs whose best epoch was one of a fade.
    """

    epoch: int
    validation: float
    test: float | None


class Finished(Section):
    """Record of a finished run.

    Attributes:
        recipe: Packaged recipe.
        overrides: Changes to the recipe, by dotted key.
        seed: Seed.
        score: Name of the score.
        test: Score on the test images after the last epoch, in percent.
        validation: Score on the validation images after the last epoch, in percent.
        best: The best epoch. Early records do not have it.
        gates: Comparisons per image.
        neurons: ReLUs of the plain network.
        epochs: Epochs of each phase of the network itself, without those of its teachers.
        seconds: Time of training and validation in these phases.
        environment: Environment of the run.
        command: Command line.
        date: Date of the end.
    """

    recipe: str
    overrides: dict[str, Any]
    seed: int
    score: Literal["accuracy", "miou"]
    test: float
    validation: float
    best: BestEpoch | None = None
    gates: int
    neurons: int
    epochs: dict[str, int]
    seconds: float
    environment: dict[str, Any]
    command: str
    date: str

    def __str__(self) -> str:
        changed = "".join(f", {key} {value}" for key, value in self.overrides.items())
        place = f"{self.environment.get('gpu') or self.environment.get('cpu')}, {self.date}"
        return f"{self.score} {self.test:.2f}% with {self.gates:,} of {self.neurons:,} gates{changed} ({place})"


@dataclass(frozen=True)
class Listed:
    """A recipe and its finished runs."""

    recipe: Recipe
    runs: tuple[Finished, ...]

    @property
    def status(self) -> str:
        """All finished runs in one line."""
        return "; ".join(map(str, self.runs)) or NOT_RUN

    @property
    def paper(self) -> str:
        """Result in the paper; empty for a recipe that is not in the paper."""
        row = self.recipe.paper
        return f"{row.accuracy or row.miou}% (table {row.table})" if row else ""


def list_recipes(results: Path | None = None) -> list[Listed]:
    """Return every packaged recipe with its finished runs.

    Args:
        results: Folder of the recorded runs; by default the packaged one.

    Raises:
        RecipeError: A recorded run cannot be read.
    """
    folder = results or resources.files("deepshare.training") / "results"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    runs = [_read(file.name, file.read_text(encoding="utf-8")) for file in files]
    return [Listed(load_recipe(name), tuple(run for run in runs if run.recipe == name)) for name in names()]


def as_table(rows: Sequence[Listed], width: int | None = None) -> str:
    """Format the list as a table, with lines of at most `width` characters."""
    cells = [(row.recipe.name, row.recipe.about, row.paper, row.status) for row in rows]
    return table(("recipe", "what it trains", "paper", "run here"), cells, "<<<<", width)


def record(folder: str | Path) -> Finished:
    """Read the record of a finished run from its folder.

    Raises:
        CheckpointError: The run is not finished, or a file is missing or damaged.
        RecipeError: Its recipe is not a packaged one.
    """
    path = Path(folder)
    if not (path / "result.json").is_file():
        raise CheckpointError(f"{path} holds no finished run (no result.json): finish it with deepshare train --resume")
    recipe = load_recipe(path / "recipe.toml")
    result, lines = RunFolder(path).read_result(), own_lines(RunFolder(path))
    environment = read_environment(RunFolder(path))
    score: Literal["accuracy", "miou"] = "miou" if "val_miou" in lines[-1] else "accuracy"
    command = environment.pop("command")
    return Finished(
        recipe=recipe.name,
        overrides={key: new for key, (_, new) in differences(load_recipe(recipe.name), recipe).items()},
        seed=recipe.seed,
        score=score,
        test=round(100 * result["test"]["last"][score], 2),
        validation=round(100 * lines[-1][f"val_{score}"], 2),
        best=_best(lines, f"val_{score}", result),
        gates=result["gates"],
        neurons=result.get("neurons") or _neurons(path / "plan.json") or result["gates"],
        epochs={line["phase"]: line["epoch"] for line in lines},
        seconds=result["seconds"],
        environment=environment,
        command=shlex.join([Path(command[0]).name, *command[1:]]),
        date=result.get("date") or _written(path / "result.json"),
    )


def _best(lines: Sequence[dict[str, Any]], score: str, result: Mapping[str, Any]) -> BestEpoch:
    best = best_line(lines, score)
    last = [line for line in lines if line["phase"] == best["phase"]]
    # Early runs kept the best of all epochs of the phase, and did not say of which it was.
    kept = result.get("best_epoch") or max(last, key=lambda line: float(line[score]))["epoch"]
    test = result["test"]["best"][score.removeprefix("val_")] if kept == best["epoch"] else None
    return BestEpoch(
        epoch=best["epoch"],
        validation=round(100 * best[score], 2),
        test=None if test is None else round(100 * test, 2),
    )


def _written(file: Path) -> str:
    """Return the day on which a file was written, for runs of versions that did not record their end."""
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()


def _read(name: str, text: str) -> Finished:
    try:
        return Finished.model_validate_json(text)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"]))
        raise RecipeError(f"the recorded run {name} cannot be read: {wrong}: {error.errors()[0]['msg']}") from None


def _neurons(plan: Path) -> int:
    if not plan.is_file():
        return 0
    sites = [site for group in json.loads(plan.read_text())["groups"] for site in group["sites"]]
    return sum(site["channels"] * site["height"] * site["width"] for site in sites)
