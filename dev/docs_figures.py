"""Draw the figures of the documentation anew: `python dev/docs_figures.py` writes docs/figures/*.svg."""

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

import deepshare
from deepshare import zoo
from deepshare.files import write_atomically
from deepshare.private.cost import predict
from deepshare.sharing.activation import hard_gate, soft_gate
from deepshare.sharing.gates import hard_channels, prototype_of
from deepshare.study.drawing import BLUE, DARK, FAINT, FRAME, ORANGE, PALE_BLUE, PALE_ORANGE
from deepshare.training.recipe import load_recipe

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
LINES, AREAS = (BLUE, ORANGE), (PALE_BLUE, PALE_ORANGE)
SIZE = (3, 32, 32)


def sharing() -> Figure:
    """A group of a leader and one follower with six channels each, of which two are prototypes."""
    figure = Figure(figsize=(8.6, 4.3), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.6, 12.4), ylim=(-6.3, 1.5))
    axes.axis("off")
    pi = prototype_of(6, 2, "round-robin").tolist()
    for gate in (0, 1):
        axes.plot([1.2, 2.6], [-gate, -gate], color=LINES[gate], lw=2)
        axes.add_patch(Circle((3.0, -gate), 0.36, facecolor=LINES[gate], edgecolor="none", zorder=3))
        axes.text(3.0, -gate, f"g{gate}", color="white", ha="center", va="center", fontsize=9, zorder=4)
        axes.text(1.9, -gate + 0.08, "≥ 0 ?", color=LINES[gate], ha="center", va="bottom", fontsize=9)
    for channel, gate in enumerate(pi):
        _channel(axes, 0.0, channel, gate, "prototype" if channel < 2 else "replicate")
        _channel(axes, 8.2, channel, gate, "follows")
        for x in (4.5, 10.3):
            axes.text(x, -channel, f"x[{channel}] (alpha g{gate} + beta)", va="center", fontsize=9, color=LINES[gate])
        axes.plot([3.36, 4.4], [-gate, -channel], color=LINES[gate], lw=1, zorder=1)
        axes.plot([9.7 + 0.2 * gate, 10.2], [-channel, -channel], color=LINES[gate], lw=1)
    for gate in (0, 1):
        out, low, turn = 3.0 - 0.1 * gate, -5.55 - 0.25 * (1 - gate), 9.7 + 0.2 * gate
        axes.plot([out, out, turn, turn], [-gate, low, low, -gate], color=LINES[gate], lw=1, zorder=1)
    axes.text(2.7, 1.15, "leader: computes the gates of 2 channels", ha="center", color=DARK, fontsize=10)
    axes.text(9.9, 1.15, "follower: computes none", ha="center", color=DARK, fontsize=10)
    axes.text(5.2, -6.25, "the same gates, for every follower of the group", ha="center", color=FAINT, fontsize=9)
    return figure


def _channel(axes: Axes, x: float, channel: int, gate: int, role: str) -> None:
    edge, width = (DARK, 1.8) if role == "prototype" else (FRAME, 1.0)
    style = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch(
        (x, -channel - 0.32), 1.2, 0.64, boxstyle=style, facecolor=AREAS[gate], edgecolor=edge, lw=width
    )
    axes.add_patch(box)
    axes.text(x + 0.6, -channel, f"x[{channel}]", ha="center", va="center", fontsize=10, color=DARK)
    if role != "follows":
        axes.text(x, -channel + 0.35, role, ha="left", va="bottom", fontsize=7, color=FAINT)


def phases() -> Figure:
    """The gate in each phase, and which channels have which gate in each epoch of the recipe `digits`."""
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    curve, switch = figure.subplots(1, 2, width_ratios=(1, 1.9))
    x = torch.linspace(-3, 3, 241)
    for sharpness, dash in ((1.0, "-"), (4.0, "--")):
        curve.plot(x, soft_gate(x, sharpness), dash, color=BLUE, label=f"soft, sharpness {sharpness:g}")
    curve.plot(x, hard_gate(x), color=ORANGE, label="hard")
    curve.set(title="the gate of a prototype", xlabel="x", yticks=(0, 0.5, 1))
    curve.legend(frameon=False, fontsize=8, loc="lower right")
    _switch(switch)
    for axes in (curve, switch):
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _switch(axes: Axes) -> None:
    channels = 16
    epochs = {name: phase.epochs for name, phase in load_recipe("digits").phases.items()}
    progress = [0.0] * epochs["gelu"]
    progress += [(epoch + 1) / epochs["switch"] for epoch in range(epochs["switch"])]
    progress += [1.0] * epochs["finetune"]
    hard = np.array([hard_channels(channels, share) for share in progress])
    is_hard = np.arange(channels)[:, None] >= channels - hard
    columns, rows = np.arange(len(hard) + 1) + 0.5, np.arange(channels + 1) - 0.5
    axes.pcolormesh(columns, rows, is_hard, cmap=ListedColormap([PALE_BLUE, ORANGE]), edgecolor="white")
    start = 0.5
    for name in ("gelu", "switch", "finetune"):
        axes.text(start + epochs[name] / 2, -1.2, name, ha="center", fontsize=9, color=DARK)
        start += epochs[name]
        axes.axvline(start, color=DARK, lw=0.8)
    title = f"{channels} channels of a site: soft (pale) or hard"
    axes.set(title=title, xlabel="epoch", ylabel="channel, prototypes first", ylim=(channels - 0.5, -2.2))
    axes.set_yticks(range(0, channels, 5))


def cost() -> Figure:
    """What activations send and what is dealt before, by the budget of a ResNet-18 at 32x32."""
    model = zoo.resnet18()
    counts, online, dealt = [], [], []
    for budget in (6_000, 12_900, 49_900, 100_000, None):
        plan = deepshare.plan(model, SIZE, budget) if budget else None
        network = deepshare.share(model, plan) if plan else model
        counts.append(plan.gates if plan else 491_520)
        online.append(predict(network, SIZE, "crypten").activations.client_bytes / 1e6)
        dealt.append(predict(network, SIZE, "gateshare").offline.dealer_bytes / 1e6)
    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    for axes, values, title in (
        (figure.add_subplot(1, 2, 1), online, "crypten: a party sends for activations"),
        (figure.add_subplot(1, 2, 2), dealt, "gateshare: dealt before, for one image"),
    ):
        axes.loglog(counts[:-1], values[:-1], "o-", color=BLUE)
        axes.loglog(counts[-1:], values[-1:], "s", color=ORANGE)
        for count, value in zip(counts, values, strict=True):
            axes.annotate(f"{value:.1f}", (count, value), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        axes.annotate(
            "all ReLUs", (counts[-1], values[-1]), (-6, -12), textcoords="offset points", ha="right", fontsize=8
        )
        axes.set(title=title, xlabel="gates", ylabel="MB", ylim=(min(values) / 1.6, max(values) * 2))
        axes.set_xticks(counts, [f"{count / 1000:.0f}K" for count in counts])
        axes.set_yticks(ticks := [tick for tick in (5, 10, 50, 100, 500) if tick < max(values) * 2], map(str, ticks))
        axes.minorticks_off()
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"sharing": sharing, "phases": phases, "cost": cost}


def draw(name: str) -> bytes:
    """One figure as SVG; the same figure is the same file."""
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn, format="svg", metadata={"Date": None})
    return b"".join(line.rstrip() + b"\n" for line in drawn.getvalue().splitlines())


if __name__ == "__main__":
    for name in FIGURES:
        write_atomically(FOLDER / f"{name}.svg", draw(name))
