"""Figure of the XOR experiment: decision regions of the four methods."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from deepshare.study import drawing
from deepshare.study.drawing import BLUE, DARK, FAINT, FRAME, ORANGE, PALE_BLUE, PALE_ORANGE, TICKS
from deepshare.study.xor.experiment import SOLVED, XorOutcome, XorResult, grid, label
from deepshare.study.xor.networks import BIAS, WEIGHT

# Equal signs, different signs.
POINTS = (BLUE, ORANGE)
REGIONS = (PALE_BLUE, PALE_ORANGE)
SIDE = 480


def draw(result: XorResult) -> Figure:
    """Draw one panel per method in the paper's order, each with the seed of median accuracy."""
    figure = Figure(figsize=(8.4, 9.6), layout=ConstrainedLayoutEngine(hspace=0.04, wspace=0.04))
    figure.suptitle(_caption(result), fontsize=9.5, color=FAINT)
    for axes, outcome in zip(figure.subplots(2, 2).flat, result.outcomes, strict=True):
        _panel(axes, outcome)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, outcome: XorOutcome) -> None:
    logits = outcome.network.forward(grid(SIDE)).logits.view(SIDE, SIDE)
    colours = ListedColormap(REGIONS)
    axes.imshow(
        (logits > 0).numpy(),
        extent=(-1, 1, -1, 1),
        origin="lower",
        cmap=colours,
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    differ = label(outcome.points) > 0
    for points, colour in zip((outcome.points[:, ~differ], outcome.points[:, differ]), POINTS, strict=True):
        axes.plot(*points.numpy(), "o", color=colour, markersize=2.2, markeredgewidth=0)
    (a, b), c = outcome.network.neurons[WEIGHT, 0, 0].tolist(), outcome.network.neurons[BIAS, 0, 0].item()
    axes.contour([-1, 1], [-1, 1], [[c - a - b, c + a - b], [c - a + b, c + a + b]], [0], colors=DARK, linestyles="--")
    axes.set_title(outcome.method.title, fontsize=11, fontweight="bold", pad=20)
    accuracy = outcome.accuracies[outcome.shown]
    said = f"solved by {outcome.solved} of {len(outcome.accuracies)} seeds; shown: {accuracy:.1%} right"
    axes.text(0.5, 1.02, said, transform=axes.transAxes, ha="center", fontsize=9, color=FAINT)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
    axes.tick_params(length=0, labelsize=8, colors=TICKS)
    axes.spines[:].set_color(FRAME)


def _marks() -> list[Line2D]:
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5}
    square: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 11}
    return [
        Line2D([], [], color=POINTS[0], label="signs agree", **dot),
        Line2D([], [], color=POINTS[1], label="signs differ", **dot),
        Line2D([], [], color=REGIONS[0], label="decided: agree", **square),
        Line2D([], [], color=REGIONS[1], label="decided: differ", **square),
        Line2D([], [], color=DARK, linestyle="--", label="the gate turns"),
    ]


def _caption(result: XorResult) -> str:
    seeds = f"of {result.settings.seeds} seeds"
    return (
        f"The 2 \N{MULTIPLICATION SIGN} 2 checkerboard with a single gate. Each panel shows, {seeds}, the one of\n"
        f"median accuracy, with the points it learned from. Solved: at least {SOLVED:.0%} right on a grid."
    )


def save(result: XorResult, folder: Path, command: str) -> None:
    """Write xor.json, xor.svg and xor.png into an existing folder.

    Args:
        result: The result.
        folder: An existing folder.
        command: The command that produced it, for the record.
    """
    drawing.save("xor", result.to_dict(), lambda: draw(result), folder, command)
