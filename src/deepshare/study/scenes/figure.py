"""Figure of segmentation runs: test images, their true classes, and the predictions of each run."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from deepshare.data.palette import coloured
from deepshare.study import drawing
from deepshare.study.drawing import DARK, FAINT, FRAME
from deepshare.study.samples import Scene
from deepshare.study.scenes.comparison import SceneComparison, SegmentationRun

PANEL = 2.6  # width of a picture in inches
KEYS = 6  # classes in a row of the legend


def draw(found: SceneComparison) -> Figure:
    """Draw one row per image, with the image, its classes, and one column per run."""
    scenes = found.runs[0].scenes
    columns, rows = 2 + len(found.runs), len(scenes)
    height, width = scenes[0].truth.shape
    legend = _legend(found)
    lines = 1 + (len(legend) - 1) // KEYS
    size = (PANEL * columns, (PANEL * height / width + 0.2) * rows + 0.7 + 0.25 * lines)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for row, scene in enumerate(scenes):
        _panel(panels[row][0], scene.image, f"test image {scene.number}")
        _panel(panels[row][1], coloured(scene.truth), "")
        for panel, run in zip(panels[row][2:], found.runs, strict=True):
            _panel(panel, _predicted(run.scenes[row]), f"{run.scenes[row].accuracy:.1%} of the pixels right")
    for panel, title in zip(panels[0], ("image", "truth", *map(_title, found.runs)), strict=True):
        panel.set_title(title, fontsize=9.5, color=DARK, fontweight="bold")
    figure.legend(handles=legend, loc="outside lower center", ncols=KEYS, frameon=False, fontsize=9)
    return figure


def _title(run: SegmentationRun) -> str:
    return f"{Path(run.name).resolve().name}\n{run.gates_said}\nmIoU {run.miou:.1%}"


def _predicted(scene: Scene) -> Tensor:
    """Predicted classes of the labelled pixels; the others are not evaluated."""
    return coloured(scene.found.masked_fill(scene.truth < 0, -1))


def _panel(axes: Axes, picture: Tensor, below: str) -> None:
    axes.imshow(picture.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_xlabel(below, fontsize=8, color=FAINT)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(FRAME)


def _legend(found: SceneComparison) -> list[Patch]:
    """Keys of the classes that occur in the pictures."""
    shown = [classes.flatten() for run in found.runs for scene in run.scenes for classes in (scene.truth, scene.found)]
    numbers = torch.cat(shown).unique()
    occurring = numbers[numbers >= 0]
    colours = (coloured(occurring[None])[:, 0].T / 255).tolist()
    names = (found.classes[number] for number in occurring.tolist())
    keys = [Patch(facecolor=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    return [*keys, Patch(facecolor="black", label="no class")]


def save(found: SceneComparison, folder: Path, command: str) -> None:
    """Write scenes.json, scenes.svg and scenes.png into an existing folder.

    Args:
        found: The runs to draw.
        folder: An existing folder.
        command: The command that produced it, for the record.
    """
    record = {"classes": list(found.classes), "runs": [run.to_dict() for run in found.runs]}
    drawing.save("scenes", record, lambda: draw(found), folder, command)
