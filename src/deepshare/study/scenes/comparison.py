"""Predictions of several segmentation runs on the same test images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepshare.errors import DataError, DeepShareError
from deepshare.study.samples import Examples, Scene, check_run, evenly_spaced, open_images, predict_scenes
from deepshare.text import table
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder


@dataclass(frozen=True)
class SegmentationRun:
    """A finished run of segmentation.

    Attributes:
        name: Its folder, as given.
        gates: Comparisons per image.
        neurons: ReLUs of the plain network.
        miou: mIoU over all test images.
        scenes: Predictions on the sampled images, which are the same for all runs.
    """

    name: str
    gates: int
    neurons: int
    miou: float
    scenes: tuple[Scene, ...]

    @property
    def gates_said(self) -> str:
        """Gate count, as text."""
        return f"{self.gates:,} gates" + (f" ({self.gates / self.neurons:.1%})" if self.gates < self.neurons else "")

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        scenes = [scene.to_dict() for scene in self.scenes]
        return {"run": self.name, "gates": self.gates, "neurons": self.neurons, "miou": self.miou, "scenes": scenes}


@dataclass(frozen=True)
class SceneComparison:
    """Runs side by side, and the names of the classes."""

    runs: tuple[SegmentationRun, ...]
    classes: tuple[str, ...]

    def __str__(self) -> str:
        header = ("run", "gates", "mIoU", *(f"image {scene.number}" for scene in self.runs[0].scenes))
        rows = [
            (run.name, f"{run.gates:,}", f"{run.miou:.2%}", *(f"{scene.accuracy:.1%}" for scene in run.scenes))
            for run in self.runs
        ]
        about = "mIoU: over all test images; image: share of the labelled pixels that are right"
        return f"{table(header, rows, '<' + '>' * (len(header) - 1))}\n{about}"


def compare(runs: Sequence[Path], *, samples: int, data_dir: Path | None) -> SceneComparison:
    """Run the networks of finished runs on test images that are evenly spaced among all.

    Args:
        runs: The run folders.
        samples: Number of images; all, if there are fewer.
        data_dir: Folder of the data sets.

    Raises:
        CheckpointError: A run is unfinished or damaged.
        DataError: The data set is missing, differs between the runs, or is not for segmentation.
        DeepShareError: `samples` is less than 1.
    """
    if samples < 1:
        raise DeepShareError(f"samples {samples}: show at least one image")
    for run in runs:
        check_run(run)
    source = _images(runs, data_dir)
    places = evenly_spaced(len(source.images), samples)
    return SceneComparison(tuple(_show(run, source, places) for run in runs), source.images.classes)


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


def _show(run: Path, source: Examples, places: Sequence[int]) -> SegmentationRun:
    result = RunFolder(run).read_result()
    scenes = predict_scenes(load(run), source, places)
    return SegmentationRun(str(run), result["gates"], result["neurons"], result["test"]["last"]["miou"], scenes)
