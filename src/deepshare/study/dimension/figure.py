"""Figure of the gate analysis: per site the effective dimension with its baseline, and three correlations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from deepshare.study import drawing
from deepshare.study.dimension.summary import Dimension, Quantiles, SiteGates
from deepshare.study.drawing import BLUE, DARK, FAINT, FRAME, ORANGE, PALE_BLUE, PALE_ORANGE, TICKS

GREEN = "#3d8b6e"
# Ways to share a gate: attribute of SiteGates, colour, marker, name.
KINDS = (
    ("channels", BLUE, "o", "nearest other channel"),
    ("leader", ORANGE, "D", "nearest channel of the leader"),
    ("neighbours", GREEN, "s", "same channel, one position on"),
)


def draw(result: Dimension, title: str = "") -> Figure:
    """Draw the sites from top to bottom: box plots on the left, correlations on the right.

    Args:
        result: The measurement.
        title: Name of the run or network.
    """
    height = 2.1 + 0.2 * bool(result.warning) + 0.42 * len(result.sites)
    figure = Figure(figsize=(11.2, height), layout=ConstrainedLayoutEngine(wspace=0.04))
    said = f"Gates over {result.images:,} images" + (f" \N{MIDDLE DOT} {title}" if title else "")
    figure.suptitle(f"{said}\n{result.warning}".rstrip(), fontsize=10.5, color=FAINT)
    boxes, dots = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
    _boxes(boxes, result.sites)
    _dots(dots, result.sites)
    for axes in (boxes, dots):
        _frame(axes, result.sites)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _boxes(axes: Axes, sites: Sequence[SiteGates]) -> None:
    for offset, name, line, fill in ((-0.19, "dimension", BLUE, PALE_BLUE), (0.19, "shuffled", ORANGE, PALE_ORANGE)):
        rows = [(row, getattr(gates, name)) for row, gates in enumerate(sites)]
        known = [(row, spread) for row, spread in rows if spread.median == spread.median]
        style: dict[str, Any] = {"color": line, "linewidth": 1.2}
        axes.bxp(
            [_box(spread) for _, spread in known],
            positions=[row + offset for row, _ in known],
            widths=0.3,
            orientation="horizontal",
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": fill, "edgecolor": line},
            medianprops={"color": line, "linewidth": 2.2},
            whiskerprops=style,
            capprops=style,
        )
    axes.set_title("Effective dimension / channels", fontsize=11, fontweight="bold")
    axes.set_xlabel(
        "low: channels could share gates (boxes: quartiles of positions, whiskers: 5-95%)",
        fontsize=9,
        color=FAINT,
    )
    axes.set_yticks(range(len(sites)), [_name(gates) for gates in sites], fontsize=8.5)


def _box(spread: Quantiles) -> dict[str, float]:
    return {
        "med": spread.median,
        "q1": spread.lower,
        "q3": spread.upper,
        "whislo": spread.low,
        "whishi": spread.high,
    }


def _name(gates: SiteGates) -> str:
    c, h, w = gates.site.shape
    times = "\N{MULTIPLICATION SIGN}"
    some = f"\n{gates.positions_said} positions" if gates.positions < gates.site.positions else ""
    return f"{gates.site.name}   {c}{times}{h}{times}{w}{some}"


def _dots(axes: Axes, sites: Sequence[SiteGates]) -> None:
    rows = range(len(sites))
    for name, colour, marker, _ in KINDS:
        values = [getattr(gates, name) for gates in sites]
        axes.plot(values, rows, linestyle="", marker=marker, color=colour, markersize=6.5, alpha=0.9)
    axes.set_title("Correlation of a gate with \N{HORIZONTAL ELLIPSIS}", fontsize=11, fontweight="bold")
    axes.set_xlabel("high: gates could be shared this way", fontsize=9, color=FAINT)


def _frame(axes: Axes, sites: Sequence[SiteGates]) -> None:
    axes.set(xlim=(0, 1.02), ylim=(len(sites) - 0.4, -0.6), xticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for row in range(1, len(sites)):
        if sites[row].group != sites[row - 1].group:
            axes.axhline(row - 0.5, color=FRAME, linewidth=0.8)
    axes.tick_params(length=0, labelsize=8.5, colors=TICKS)
    axes.tick_params(axis="y", labelcolor=DARK)
    axes.spines[:].set_color(FRAME)


def _marks() -> list[Patch | Line2D]:
    dots: list[Patch | Line2D] = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=label) for _, colour, marker, label in KINDS
    ]
    return [
        Patch(facecolor=PALE_BLUE, edgecolor=BLUE, label="at the same position"),
        Patch(facecolor=PALE_ORANGE, edgecolor=ORANGE, label="positions shuffled"),
        *dots,
    ]


def save(result: Dimension, folder: Path, command: str, title: str = "") -> None:
    """Write dimension.json, dimension.svg and dimension.png into an existing folder.

    Args:
        result: The measurement.
        folder: An existing folder.
        command: The command that produced it, for the record.
        title: Name of the run or network.
    """
    drawing.save("dimension", result.to_dict(), lambda: draw(result, title), folder, command)
