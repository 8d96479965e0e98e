"""Figure of affine parameters: alpha over beta, one panel per site, networks side by side."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from deepshare.study import drawing
from deepshare.study.affine.parameters import LINEAR, NetworkAffine, SiteAffine
from deepshare.study.drawing import BLUE, DARK, FAINT, FRAME, ORANGE, TICKS

COLUMNS = 4
PANEL = 2.15
LINEAR_AREA = "#e9e9e9"


def draw(networks: Sequence[NetworkAffine]) -> Figure:
    """Draw a block of panels per network; all panels share one scale."""
    columns = [min(COLUMNS, len(network.sites)) for network in networks]
    rows = max(math.ceil(len(network.sites) / COLUMNS) for network in networks)
    size = (PANEL * sum(columns) + 0.6 * len(networks), PANEL * 1.1 * rows + 1.6)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle("How channels use their gates: factor = alpha \N{MULTIPLICATION SIGN} gate + beta", color=FAINT)
    blocks = figure.subfigures(1, len(networks), squeeze=False, width_ratios=columns, wspace=0.03)[0]
    limit = _limit(networks)
    for block, network in zip(blocks, networks, strict=True):
        _block(block, network, rows, limit)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _limit(networks: Sequence[NetworkAffine]) -> float:
    largest = max(float(torch.cat([site.alpha, site.beta]).abs().max()) for n in networks for site in n.sites)
    return max(1.1 * largest, 0.1)


def _block(block: SubFigure, network: NetworkAffine, rows: int, limit: float) -> None:
    block.suptitle(f"{network.title}\n{network.linear_said}", fontsize=10.5, fontweight="bold")
    columns = min(COLUMNS, len(network.sites))
    panels = block.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for place, axes in enumerate(panels.flat):
        if place < len(network.sites):
            _panel(axes, network.sites[place], limit)
        else:
            axes.set_axis_off()
    block.supxlabel("beta", fontsize=9.5, color=FAINT)
    block.supylabel("alpha", fontsize=9.5, color=FAINT)


def _panel(axes: Axes, site: SiteAffine, limit: float) -> None:
    # The larger factor is beta where alpha and beta differ in sign, and alpha + beta where they agree.
    apart, alike = LINEAR * limit, LINEAR / (1 - LINEAR) * limit
    axes.fill_between([-limit, 0, limit], [-alike, 0, -apart], [apart, 0, alike], color=LINEAR_AREA, linewidth=0)
    axes.axhline(0, color=FRAME, linewidth=0.8)
    axes.axvline(0, color=FRAME, linewidth=0.8)
    p = site.prototypes
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgewidth": 0}
    axes.plot(site.beta[p:], site.alpha[p:], color=BLUE, markersize=3.4, alpha=0.65, **dot)
    axes.plot(site.beta[:p], site.alpha[:p], color=ORANGE, markersize=4.6, alpha=0.9, **dot)
    axes.set_title(site.site, fontsize=8.5, color=DARK, pad=14)
    counts = ((p, "prototype"), (len(site.alpha) - p, "replicate"))
    said = ", ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)
    axes.text(0.5, 1.03, said, transform=axes.transAxes, ha="center", fontsize=7.5, color=FAINT)
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
    axes.tick_params(length=0, labelsize=7.5, colors=TICKS)
    axes.spines[:].set_color(FRAME)


def _marks() -> list[Line2D | Patch]:
    dot: dict[str, Any] = {"linestyle": "", "marker": "o"}
    return [
        Line2D([], [], color=ORANGE, markersize=5, label="prototype", **dot),
        Line2D([], [], color=BLUE, markersize=4.5, label="replicate", **dot),
        Patch(facecolor=LINEAR_AREA, label="linear-like: the gate hardly matters"),
    ]


def save(networks: Sequence[NetworkAffine], folder: Path, command: str) -> None:
    """Write affine.json, affine.svg and affine.png into an existing folder.

    Args:
        networks: One network, or several to compare.
        folder: An existing folder.
        command: The command that produced it, for the record.
    """
    content = {"linear_like": f"|alpha| <= {LINEAR} max(|beta|, |alpha + beta|)"}
    record = {**content, "runs": [network.to_dict() for network in networks]}
    drawing.save("affine", record, lambda: draw(networks), folder, command)
