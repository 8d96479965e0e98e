"""Common parts of all figures: colours, and writing a figure beside its numbers."""

import io
import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from deepshare import __version__
from deepshare.files import write_atomically

# Distinguishable for most colour-blind readers; the pale ones fill areas.
BLUE, ORANGE = "#0b5394", "#c0501f"
PALE_BLUE, PALE_ORANGE = "#cfe0f1", "#f9dccb"
DARK, FAINT, TICKS, FRAME = "#222222", "#444444", "#666666", "#bbbbbb"
DPI = 120


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
