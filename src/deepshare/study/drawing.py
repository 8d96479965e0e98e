"""Common parts of all figures: colours, axes of accuracy over gates, and writing a figure beside its numbers."""

import io
import json
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from deepshare import __version__
from deepshare.files import write_atomically

# Distinguishable for most colour-blind readers; the pale ones fill areas.
BLUE, ORANGE = "#0b5394", "#c0501f"
PALE_BLUE, PALE_ORANGE = "#cfe0f1", "#f9dccb"
DARK, FAINT, TICKS, FRAME = "#222222", "#444444", "#666666", "#bbbbbb"
DPI = 120

# One for each method; the markers differ as well.
COLOURS = (
    BLUE,
    "#a9a35c",
    "#2a8a57",
    "#b8478f",
    "#8a6d00",
    "#3aa0c9",
    "#6b4fa0",
    "#7a7a7a",
    "#d98200",
    "#222222",
    "#7fb800",
    "#9c2a2a",
    "#00a08a",
    "#e58fb0",
    "#8fb0e5",
    "#c0501f",
)
MARKERS = "osD^vP*Xhd"

Styles = Mapping[str, tuple[str, str]]


def save(name: str, content: Mapping[str, Any], draw: Callable[[], Figure], folder: Path, command: str) -> None:
    """Write the numbers of a study as JSON and its figure as SVG and PNG.

    Args:
        name: Name of the study and of the three files.
        content: The numbers.
        draw: Creates the figure.
        folder: An existing folder.
        command: The command that produced them, for the record.
    """
    versions = {"deepshare": __version__, "torch": torch.__version__, "python": platform.python_version()}
    record = {"study": name, "command": command, "versions": versions, **content}
    write_atomically(folder / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())
    save_figure(name, draw, folder)


def save_figure(name: str, draw: Callable[[], Figure], folder: Path) -> None:
    """Write a figure as SVG and PNG into an existing folder."""
    # Without a date and with a fixed salt, equal results give equal files.
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = draw()
        for suffix in ("svg", "png"):
            drawn = io.BytesIO()
            metadata = {"Date": None} if suffix == "svg" else {}
            figure.savefig(drawn, format=suffix, dpi=DPI, metadata=metadata)
            write_atomically(folder / f"{name}.{suffix}", drawn.getvalue())
            figure.set_layout_engine("none")  # laid out once for both


def styles(methods: Iterable[str]) -> Styles:
    """Colour and marker of each method, by its first place in the order."""
    return {
        name: (COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)])
        for number, name in enumerate(dict.fromkeys(methods))
    }


def dress(axes: Axes, title: str, ticks: Sequence[int], measure: str) -> None:
    """Set title, logarithmic gate axis, labels and frame of a panel."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gates, _: f"{gates:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, color=DARK, fontsize=10)
    axes.set_xlabel("gates", fontsize=9)
    axes.set_ylabel(f"{measure}, %", fontsize=9)
    axes.tick_params(colors=TICKS, labelsize=8)
    axes.grid(color=FRAME, linewidth=0.4)
    for spine in axes.spines.values():
        spine.set_color(FRAME)


def level(axes: Axes, name: str, score: float) -> None:
    """Draw a labelled horizontal line at the accuracy of a network with all its ReLUs."""
    axes.axhline(score, color=TICKS, linewidth=0.8, linestyle="--", zorder=0)
    where: tuple[str, str] = ("axes fraction", "data")
    axes.annotate(name, (1, score), (4, 0), where, "offset points", fontsize=7.5, color=TICKS, va="center")


def round_ticks(counts: Sequence[int]) -> list[int]:
    """Round tick values that span all counts.

    >>> round_ticks([6000, 78000])
    [5000, 10000, 20000, 50000, 100000]
    """
    powers = range(int(math.log10(min(counts))), int(math.log10(max(counts))) + 2)
    steps = sorted(step * 10**power for power in powers for step in (1, 2, 5))
    first = max(step for step in steps if step <= min(counts))
    last = min(step for step in steps if step >= max(counts))
    return [step for step in steps if first <= step <= last]
