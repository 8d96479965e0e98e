"""`deepshare train`: training of a network by a recipe."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from deepshare.cli.options import NO_REWRITING, Flag, Json, Rewriting
from deepshare.errors import CheckpointError, DataError, RecipeError


def train(
    *keys: Annotated[str, Parameter(allow_leading_hyphen=True)],
    recipe: Annotated[str | None, Parameter(name=["--recipe", "-r"])] = None,
    out: Path | None = None,
    resume: Flag = False,
    dry_run: Flag = False,
    model: str | None = None,
    weights: str | None = None,
    rewriting: Rewriting = NO_REWRITING,
    data: str | None = None,
    data_dir: Path | None = None,
    download: Flag = False,
    teacher: Path | None = None,
    plain: Path | None = None,
    accelerator: Literal["auto", "cpu", "cuda", "mps"] | None = None,
    devices: int | None = None,
    num_nodes: int | None = None,
    precision: Literal["32-true", "bf16-mixed"] | None = None,
    compile: Flag = False,
    deterministic: Flag = False,
    log: Literal["tensorboard"] | None = None,
    as_json: Json = False,
) -> None:
    """Train a network by a recipe, including the teacher and the plain network that it needs, into a run folder.

    Any key of the recipe is also a flag: --gelu.epochs 2 --budget.gates 10% --seed 1.

    Args:
        keys: Any key of the recipe, as --KEY VALUE.
        recipe: Name of a recipe (see deepshare recipes) or a TOML file; by default own, with --model and --data.
        out: Run folder; not needed for a dry run.
        resume: Resume the run in the folder, which needs no other flag: recipe, hardware and folder of data sets are
            those of the run.
        dry_run: Train one batch of every phase and write nothing.
        model: Network to use instead of the recipe's, without its arguments.
        weights: Initial weights: a safetensors file, a saved state_dict or a run folder; for DeepLabV3 also those of
            torchvision's mobilenet_v2.
        data: Data set to use instead of the recipe's, or a folder with one folder of images per class.
        data_dir: Folder of data sets.
        download: Download a missing data set.
        teacher: Run folder of a finished teacher, such as runs/x/teacher, instead of training one.
        plain: The same for the plain network.
        accelerator: Hardware to train on; auto by default.
        devices: Number of processes on this machine, by default 1; they split each batch.
        num_nodes: Number of machines, by default 1; all must see the run folder.
        precision: Precision of the forward and backward pass; 32-true by default.
        compile: Compile the network first.
        deterministic: Refuse operations that may differ from run to run.
        log: Also write TensorBoard curves to the run folder.
    """
    if out is None and not dry_run:
        raise RecipeError("give --out, the folder for the run, or --dry-run")
    if resume and out is not None and not out.exists():
        raise CheckpointError(f"there is no run in {out} to resume: omit --resume to start one")
    if recipe is None and resume and out is not None:
        recipe = str(out / "recipe.toml")
        if not Path(recipe).is_file():
            raise CheckpointError(f"{out} is no run folder (it has no recipe.toml): give another folder")
    if recipe is None and (model is None or data is None):
        raise RecipeError("give --recipe (deepshare recipes lists them), or your own --model and --data")
    recipe = recipe or "own"
    started = {"model.weights": weights, "teacher.weights": teacher, "plain.weights": plain}
    changes = named({"model.name": model, **{key: path and Path(path).absolute() for key, path in started.items()}})
    if model is not None:
        changes["model.arguments"] = {}
    changes |= {f"model.{key}": value for key, value in rewriting.given.items()}
    changes |= read_keys(keys)
    if data is not None:
        changes = with_data(recipe, changes, data, data_dir, download)
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    from deepshare.training.api import fit, recorded_hardware
    from deepshare.training.hardware import Hardware
    from deepshare.training.recipe.files import load_recipe
    from deepshare.training.reporter import make_reporter, with_tensorboard
    from deepshare.training.run.folder import RunFolder

    chosen = load_recipe(recipe, changes)
    folder = out or Path()
    asked: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": num_nodes,
        "precision": precision,
        "compile": compile or None,
        "deterministic": deterministic or None,
    }
    known = {key: value for key, value in asked.items() if value is not None}
    hardware = replace(recorded_hardware(folder) if resume else Hardware(), **known)
    reporter = make_reporter()
    if log and not dry_run:
        reporter = with_tensorboard(reporter, folder)
    try:
        network = fit(
            recipe=chosen,
            out=folder,
            data_dir=data_dir,
            download=download,
            resume=resume,
            dry_run=dry_run,
            hardware=hardware,
            reporter=reporter,
        )
    except KeyboardInterrupt:
        reporter.note(
            "stopped" if dry_run else "stopped: run the same command with --resume to continue after the last epoch"
        )
        raise
    finally:
        reporter.end()
    if getattr(rank_zero_only, "rank", 0):  # only the first process prints
        return
    if dry_run:
        from deepshare.cli.plan import size_in
        from deepshare.private.cost import describe_engines, engine_problems

        engines = engine_problems(network, size_in(chosen, None, network), weights=False)  # a trial's weights
        if as_json:
            print(json.dumps({"dry_run": list(chosen.phases), "engines": engines}))
        else:
            print(f"{chosen.name}: every phase runs\n{describe_engines(engines)}")
        return
    result = RunFolder(folder).read_result()
    print(json.dumps({"out": str(folder), **result}) if as_json else describe(folder, result))


def read_keys(tokens: Sequence[str]) -> dict[str, str]:
    """Parse --KEY VALUE and --KEY=VALUE.

    Raises:
        RecipeError: A flag has no value, or a value no flag.

    >>> read_keys(["--gelu.epochs", "2", "--budget.gates=10%"])
    {'gelu.epochs': '2', 'budget.gates': '10%'}
    """
    keys = {}
    rest = iter(tokens)
    for token in rest:
        name, equals, value = token.partition("=")
        if not name.startswith("--"):
            raise RecipeError(f"{token} belongs to no flag: give --KEY VALUE with a key of the recipe")
        given = value if equals else next(rest, None)
        if given is None or (given.startswith("--") and not equals):
            raise RecipeError(f"{token} needs a value: give --KEY VALUE with a key of the recipe")
        keys[name.removeprefix("--").replace("-", "_")] = given
    return keys


def named(values: dict[str, object]) -> dict[str, object]:
    """Convert the given values to text and drop None."""
    return {key: str(value) for key, value in values.items() if value is not None}


def with_data(
    recipe: str, changes: dict[str, object], data: str, data_dir: Path | None, download: bool
) -> dict[str, object]:
    """Set the data set of a recipe, and its number of classes unless that is given."""
    from deepshare.data.catalog import load
    from deepshare.training.recipe.files import current, load_recipe

    if os.sep in data and not data.startswith("folder:") and not Path(data).is_dir():
        raise DataError(f"there is no folder {data}: give one with a folder of pictures for each class, or a data set")
    name = f"folder:{Path(data).absolute()}" if Path(data).is_dir() else data
    changed = {**changes, "data.name": name}
    if "model.num_classes" in map(current, changed):
        return changed
    wanted = load_recipe(recipe, changed).data
    there = load(name, data_dir, download=download, validation=wanted.validation, image_size=wanted.image_size)
    return {**changed, "model.num_classes": len(there.train.classes)}


def describe(folder: Path, result: dict[str, object]) -> str:
    """Format the last line of a run."""
    tests = result["test"]
    last = tests.get("last") if isinstance(tests, dict) else None
    name = "mIoU" if last and "miou" in last else "accuracy"
    score = f", test {name} {last.get('miou', last['accuracy']):.2%}" if last else ""
    return f"{folder}: {result['gates']:,} gates{score}"
