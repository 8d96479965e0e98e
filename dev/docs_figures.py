"""Figures of the documentation: `python dev/docs_figures.py` writes docs/figures/*.svg."""

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
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
from deepshare.training.recipe.files import load_recipe

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
RAISED = 0.13  # offset of the gate above the middle of a channel, and of its number below
LINES, AREAS = (BLUE, ORANGE), (PALE_BLUE, PALE_ORANGE)
SIZE = (3, 32, 32)


def sharing() -> Figure:
    """Draw a leader with six channels, two of them prototypes, and one follower."""
    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.1, 13.3), ylim=(_row(5) - 1.45, 0.95), aspect="equal")
    axes.axis("off")
    bottom, pi = _row(5) - 0.55, prototype_of(6, 2, "round-robin").tolist()
    # The lower gate is further left, so that the lines do not cross.
    for gate, start, end, low in ((0, 2.75, 9.2, bottom), (1, 2.15, 9.75, bottom - 0.3)):
        y = _row(gate) + RAISED
        _wire(axes, [(1.0, y), (start, y)], gate, width=2.2)
        _wire(axes, [(start, y), (start, low), (end, low), (end, _row(gate) + RAISED)], gate)
        axes.add_patch(Circle((start, y), 0.23, facecolor=LINES[gate], edgecolor="none", zorder=5))
        axes.text(start, y, f"g{gate}", color="white", ha="center", va="center", fontsize=8, zorder=6)
        axes.text(1.48, y + 0.06, "≥ 0 ?", color=LINES[gate], ha="center", va="bottom", fontsize=8)
        for channel in (channel for channel, used in enumerate(pi) if used == gate):
            _channel(axes, 0.0, channel, gate, start, 3.4, "prototype" if channel < 2 else "replicate")
            _channel(axes, 7.6, channel, gate, end, 10.3, "")
    axes.text(0.0, 0.75, "leader: computes the gates of 2 channels", color=DARK, fontsize=10, fontweight="bold")
    axes.text(7.6, 0.75, "follower: computes none", color=DARK, fontsize=10, fontweight="bold")
    said = "the same two gates, for every follower of the group"
    axes.text(5.97, bottom - 0.45, said, ha="center", va="top", color=FAINT, fontsize=9)
    return figure


def _row(channel: int) -> float:
    return -0.88 * channel


def _channel(axes: Axes, x: float, channel: int, gate: int, bus: float, out: float, role: str) -> None:
    """Draw a channel, its line to the product, and the line of its gate."""
    y = _row(channel)
    edge, width = (DARK, 1.8) if role == "prototype" else (FRAME, 1.0)
    _box(axes, (x, y), 1.0, f"x[{channel}]", AREAS[gate], edge, width)
    _box(axes, (out, y), 2.85, f"x[{channel}] (alpha g{gate} + beta)", "white", LINES[gate], 1.0)
    axes.plot([x + 1.0, out], [y - RAISED] * 2, color=FRAME, lw=1.2, zorder=1)
    _wire(axes, [(bus, y + RAISED), (out, y + RAISED)], gate)
    axes.plot(bus, y + RAISED, "o", color=LINES[gate], markersize=4, zorder=4)
    axes.text(x, y + 0.31, role, ha="left", va="bottom", fontsize=7, color=FAINT)


def _box(axes: Axes, at: tuple[float, float], size: float, words: str, face: str, edge: str, width: float) -> None:
    style = "round,pad=0,rounding_size=0.08"
    place = at[0], at[1] - 0.28
    axes.add_patch(FancyBboxPatch(place, size, 0.56, boxstyle=style, fc=face, ec=edge, lw=width, zorder=5))
    axes.text(at[0] + size / 2, at[1], words, ha="center", va="center", fontsize=9, color=DARK, zorder=6)


def _wire(axes: Axes, places: Sequence[tuple[float, float]], gate: int, width: float = 1.3) -> None:
    """Draw a line with a white edge, so that crossings do not look like joints."""
    for part in pairwise(places):
        x, y = zip(*part, strict=True)
        axes.plot(x, y, color="white", lw=width + 3, zorder=2, solid_capstyle="butt")
    x, y = zip(*places, strict=True)
    axes.plot(x, y, color=LINES[gate], lw=width, zorder=3, solid_joinstyle="round")


def phases() -> Figure:
    """Draw the gate of each phase, and the gates of all channels over the epochs of the recipe `digits`."""
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    curve, switch = figure.subplots(1, 2, width_ratios=(1, 1.9))
    x = torch.linspace(-3, 3, 241)
    for sharpness, dash in ((1.0, "-"), (4.0, "--")):
        curve.plot(x, soft_gate(x, sharpness), dash, color=BLUE, label=f"soft, sharpness {sharpness:g}")
    curve.plot(x, hard_gate(x), color=ORANGE, label="hard")
    curve.set(title="the gate of a prototype", xlabel="x", ylim=(-0.08, 1.62), yticks=(0, 0.5, 1))
    curve.legend(frameon=False, fontsize=8, loc="upper left")
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
    """Plot the bytes of activations and of preprocessing over the budget of a ResNet-18 at 32x32."""
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


# Room, and its boxes from left to right: a name, and a line about it.
DATA_FLOW = (
    ("sharing/", ("nn.Module", "any CNN, input size"), ("sites", "every ReLU call"), ("Plan", "groups, prototypes"),
     ("shared nn.Module", "alpha, beta, few gates")),
    ("training/", ("Recipe", "a TOML file"), ("Pipeline", "teachers, method, data"), ("Trainer", "phases, one loop"),
     ("run folder", "weights, plan, metrics")),
    ("private/", ("Program", "operations, hidden weights"), ("engine", "crypten, spu, gateshare"),
     ("parties", "processes or machines"), ("logits and Cost", "logits for the client")),
)  # fmt: skip
VERBS = (("find_sites", "plan", "share"), ("fit", "train", "save"), ("compile", "start", "run"))


def architecture() -> Figure:
    """The way of the data: one row for each room, from a model to the logits of a private inference."""
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.1, 13.6), ylim=(-5.15, 0.95), aspect="equal")
    axes.axis("off")
    for row, ((room, *boxes), verbs) in enumerate(zip(DATA_FLOW, VERBS, strict=True)):
        y = -2.0 * row
        axes.text(0.0, y + 0.68, room, color=DARK, fontsize=9, fontweight="bold", va="center")
        for column, (name, about) in enumerate(boxes):
            _stage(axes, 3.6 * column, y, name, about, made=column == len(boxes) - 1)
        for column, verb in enumerate(verbs):
            x = 3.6 * column + 2.6
            _arrow(axes, [(x, y), (x + 1.0, y)])
            axes.text(x + 0.46, y + 0.12, verb, color=BLUE, ha="center", va="bottom", fontsize=7)
    _arrow(axes, [(12.1, -0.45), (12.1, -1.0), (4.9, -1.0), (4.9, -1.55)])
    axes.text(8.5, -0.94, "the method's network", color=BLUE, ha="center", va="bottom", fontsize=7)
    _arrow(axes, [(12.1, -2.45), (12.1, -3.0), (1.3, -3.0), (1.3, -3.55)])
    axes.text(8.5, -2.94, "translate", color=BLUE, ha="center", va="bottom", fontsize=7)
    said = "study/ and cli/ read run folders: evaluate, export, report, compare"
    axes.text(0.0, -4.85, said, color=FAINT, fontsize=8, va="center")
    return figure


def _stage(axes: Axes, x: float, y: float, name: str, about: str, *, made: bool) -> None:
    face, edge = (PALE_ORANGE, ORANGE) if made else (PALE_BLUE, BLUE)
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y - 0.45), 2.6, 0.9, boxstyle=style, fc=face, ec=edge, lw=1.0, zorder=5))
    axes.text(x + 1.3, y + 0.17, name, ha="center", va="center", fontsize=9, color=DARK, zorder=6)
    axes.text(x + 1.3, y - 0.2, about, ha="center", va="center", fontsize=7, color=FAINT, zorder=6)


def _arrow(axes: Axes, places: Sequence[tuple[float, float]]) -> None:
    x, y = zip(*places, strict=True)
    axes.plot(x, y, color=FAINT, lw=1.1, zorder=3, solid_joinstyle="round")
    head = {"arrowstyle": "-|>", "color": FAINT, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", places[-1], places[-2], arrowprops=head, zorder=4)


FIGURES: dict[str, Callable[[], Figure]] = {
    "sharing": sharing,
    "phases": phases,
    "cost": cost,
    "architecture": architecture,
}


def draw(name: str) -> bytes:
    """Return a figure as SVG, reproducible byte for byte."""
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn, format="svg", metadata={"Date": None})
    return b"".join(line.rstrip() + b"\n" for line in drawn.getvalue().splitlines())


if __name__ == "__main__":
    for name in FIGURES:
        write_atomically(FOLDER / f"{name}.svg", draw(name))
