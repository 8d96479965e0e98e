"""What networks for segmentation make of the same test images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepshare.errors import DataError, DeepShareError
from deepshare.study.report.run import check
from deepshare.study.report.samples import Examples, Scene, look_at, open_images, spaced
from deepshare.text import table
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder


@dataclass(frozen=True)
class Shown:
    """One run.

    Attributes:
        name: Its folder, as it was given.
        gates: Comparisons for one image.
        neurons: ReLUs of the plain network.
        miou: Over all test images.
        scenes: The images that are shown, the same for all runs.
    """

    name: str
    gates: int
    neurons: int
    miou: float
    scenes: tuple[Scene, ...]

    @property
    def gates_said(self) -> str:
        """Its gates, as text."""
        return f"{self.gates:,} gates" + (f" ({self.gates / self.neurons:.1%})" if self.gates < self.neurons else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        scenes = [scene.to_dict() for scene in self.scenes]
        return {"run": self.name, "gates": self.gates, "neurons": self.neurons, "miou": self.miou, "scenes": scenes}


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, and the names of the classes."""

    runs: tuple[Shown, ...]
    classes: tuple[str, ...]

    def __str__(self) -> str:
        header = ("run", "gates", "mIoU", *(f"image {scene.number}" for scene in self.runs[0].scenes))
        rows = [
            (run.name, f"{run.gates:,}", f"{run.miou:.2%}", *(f"{scene.accuracy:.1%}" for scene in run.scenes))
            for run in self.runs
        ]
        about = "mIoU: over all test images; image: share of the labelled pixels that are right"
        return f"{table(header, rows, '<' + '>' * (len(header) - 1))}\n{about}"


def compare(runs: Sequence[Path], *, samples: int, data_dir: Path | None) -> Comparison:
    """Show test images, evenly spaced among all of them, to the networks of finished runs.

    Args:
        runs: Their folders.
        samples: How many images; all, if there are fewer.
        data_dir: Where data sets are.

    Raises:
        CheckpointError: A run is not finished, or damaged.
        DataError: The images are not there, those of the runs differ, or have no class for each pixel.
        DeepShareError: There is no sample.
    """
    if samples < 1:
        raise DeepShareError(f"samples {samples}: show at least one image")
    for run in runs:
        check(run)
    source = _images(runs, data_dir)
    places = spaced(len(source.images), samples)
    return Comparison(tuple(_show(run, source, places) for run in runs), source.images.classes)


def _images(runs: Sequence[Path], data_dir: Path | None) -> Examples:
    recipes = [load_recipe(RunFolder(run).recipe) for run in runs]
    first = recipes[0].data
    for run, recipe in zip(runs, recipes, strict=True):
        if (recipe.data.name, recipe.data.image_size) != (first.name, first.image_size):
            raise DataError(f"{run} was trained on other images than {runs[0]}: give runs of one data set and size")
        if recipe.data.evaluation != first.evaluation:
            raise DataError(f"{run} has another data.evaluation than {runs[0]}: their mIoU cannot be compared")
    source = open_images(recipes[0], data_dir)
    if not source.images.segmentation:
        raise DataError(f"{runs[0]}: the images of {first.name} have one class each: give runs of segmentation")
    return source


def _show(run: Path, source: Examples, places: Sequence[int]) -> Shown:
    result = RunFolder(run).read_result()
    scenes = look_at(load(run), source, places)
    return Shown(str(run), result["gates"], result["neurons"], result["test"]["last"]["miou"], scenes)
