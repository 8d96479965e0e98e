"""Make a finished run a network with a name: its entry in the package and its card beside the weights.

    python dev/networks.py cifar100-resnet18w16-1536 results/cifar100-small/gates-1.25 --about "..."
    python dev/networks.py NAME RUN --keep compare/fair/NAME --command "deepshare compare --study fair" --about "..."

RUN lies in results/, or --keep copies what makes the network to results/KEEP first, without paths of this machine.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from deepshare.errors import CheckpointError, DeepShareError
from deepshare.training.build import check_finished, load
from deepshare.training.catalog import record
from deepshare.training.recipe.files import Recipe, changed, load_recipe, to_toml
from deepshare.training.run.folder import RunFolder
from deepshare.training.run.networks import NamedNetwork, card, checksum

ROOT = Path(__file__).parents[1]
ENTRIES = ROOT / "src" / "deepshare" / "training" / "networks"
NETWORK = ("model.safetensors", "recipe.toml", "plan.json", "images.json")
RECORD = ("metrics.jsonl", "result.json", "environment.json")
PATHS = ("model.weights", "plain.weights", "teacher.weights")


def main() -> None:
    """Write the entry and the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--about", required=True, help="what it is, in one sentence")
    parser.add_argument("--keep", help="copy the run to this folder of results/")
    parser.add_argument("--command", help="command to record with the copy, without paths of this machine")
    options = parser.parse_args()
    try:
        folder = keep(options.run, ROOT / "results" / options.keep, options.command) if options.keep else options.run
        network = make(options.name, folder, options.about, ROOT / "results")
    except DeepShareError as error:
        parser.error(str(error))
    (ENTRIES / f"{network.name}.json").write_text(network.to_json(), encoding="utf-8")
    (folder / "README.md").write_text(card(network), encoding="utf-8")
    sys.stdout.write(card(network))


def make(name: str, folder: Path, about: str, results: Path) -> NamedNetwork:
    """Read the entry of a network from its run folder.

    Raises:
        CheckpointError: The run is not finished, or not in `results`.
    """
    if not folder.resolve().is_relative_to(results.resolve()):
        raise CheckpointError(f"{folder} is not in {results}: give --keep")
    check_finished(RunFolder(folder))
    load(folder)  # which checks weights, plan and recipe against each other
    found, recipe = record(folder), load_recipe(folder / "recipe.toml")
    files = [file for file in NETWORK if (folder / file).is_file()]
    return NamedNetwork(
        name=name,
        about=about,
        run=folder.resolve().relative_to(results.resolve()).as_posix(),
        data=recipe.data.name,
        score=found.score,
        test=found.test,
        validation=found.validation,
        gates=found.gates,
        neurons=found.neurons,
        trained=trained(recipe, found.epochs),
        command=found.command,
        files={file: checksum(folder / file) for file in files},
        size=sum((folder / file).stat().st_size for file in files),
    )


def trained(recipe: Recipe, epochs: dict[str, int]) -> str:
    """How a network was trained, in one line."""
    phases = " + ".join(f"{count} {phase}" for phase, count in epochs.items())
    images = f"{recipe.data.subset:,}" if recipe.data.subset else "all"
    start = "from the trained plain network" if recipe.starts_from_plain else "from scratch"
    return f"{recipe.method.name}, {phases} epochs on {images} training images, {start}, seed {recipe.seed}"


def keep(run: Path, folder: Path, command: str | None) -> Path:
    """Copy a finished run without paths of this machine.

    Raises:
        CheckpointError: The run is not finished, or its command has a path and no other was given.
    """
    check_finished(RunFolder(run))
    recipe = load_recipe(run / "recipe.toml")
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    said = command.split() if command else environment["command"]
    if any("/" in word for word in said):
        raise CheckpointError(f"the command of {run} has a path: give --command")
    sections = {key: getattr(recipe, key.partition(".")[0]) for key in PATHS}
    stated = {key: None for key, section in sections.items() if section is not None and section.weights}
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*NETWORK, *RECORD):
        if (run / file).is_file():
            shutil.copy(run / file, folder)
    (folder / "recipe.toml").write_text(to_toml(changed(recipe, stated)), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({**environment, "command": said}, indent=1) + "\n")
    return folder


if __name__ == "__main__":
    main()
