"""Section with the plan as a picture: a row per site, a cell per channel, and arrows from leaders to followers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepshare.sharing.gates import prototype_of
from deepshare.sharing.plan import Group, Plan
from deepshare.sharing.sites import Site
from deepshare.study.report.chart import WIDTH, framed, legend, svg, text
from deepshare.study.report.markup import Node, node, section

GAP, BETWEEN = 12.0, 6.0  # between groups, and between the sites of a group
CELLS, ROOM = 236.0, 476.0  # left edge and total width of the cells
WIDEST, EDGED = 16.0, 6.0  # largest width of a cell, and the width above which prototypes have an edge
LINE = 128  # maximum number of channels in a line; more would be too narrow to tell apart
GUTTER = CELLS - 20
# Successive multiples lie far apart on the circle of hues, so neighbours never look alike.
GOLDEN = 137.508
LETTERS = 30


@dataclass(frozen=True)
class CellBlock:
    """Cells of one site, in one or more lines."""

    channels: int
    top: float

    @property
    def lines(self) -> int:
        """Number of lines."""
        return math.ceil(self.channels / LINE)

    @property
    def columns(self) -> int:
        """Cells per line."""
        return math.ceil(self.channels / self.lines)

    @property
    def width(self) -> float:
        """Width of a cell including the gap after it."""
        return min(WIDEST, ROOM / self.columns)

    @property
    def line(self) -> float:
        """Height of a line."""
        return 18.0 if self.lines == 1 else 8.0 if self.lines < 4 else 6.0

    @property
    def height(self) -> float:
        """Height of all lines."""
        return self.line * self.lines

    def cell(self, channel: int, *, tall: bool) -> tuple[float, float, float, float]:
        """Left, top, width and height of the cell of a channel."""
        row, column = divmod(channel, self.columns)
        inset = (0.0 if tall else 4.0) if self.lines == 1 else 0.5
        gap = min(1.5, self.width * 0.15)
        place = CELLS + column * self.width, self.top + row * self.line + inset
        return *place, self.width - gap, self.line - 2 * inset


def plan_section(plan: Plan, pi: Mapping[str, Sequence[int]], *, trimmed: bool = False) -> Node:
    """Section with the picture of a plan.

    Args:
        plan: The plan.
        pi: Prototype of each channel, by site, where it was learned.
        trimmed: Whether the network was cut down to its prototypes.
    """
    drawn, top = svg(1, "the network's sites and channels", class_="network"), 4.0
    for group in plan.groups:
        block = CellBlock(group.leader.channels, top)
        drawn.append(_group(group, plan, pi, block))
        top += (block.height + BETWEEN) * len(group.sites) + GAP
    drawn.set("viewBox", f"0 0 {WIDTH:g} {top:g}")
    marks = legend(
        ("prototype", "prototype: computes its gate"), ("replicate", "replicate: uses the gate of its colour")
    )
    layers = any(group.followers for group in plan.groups)
    arrows = "An arrow points to a layer that uses the gates of the layer where it starts. " if layers else ""
    cut = "The replicates of this network are removed. " if trimmed else ""
    rows = "One row per activation, one cell per channel; channels and map size on the right."
    return section("Shared gates", f"{rows} {arrows}{cut}{_sum(plan)}", marks, framed(drawn))


def _sum(plan: Plan) -> str:
    prototypes = sum(group.prototypes for group in plan.groups)
    channels = sum(site.channels for site in plan.sites)
    return f"{prototypes:,} of {channels:,} channels are prototypes, in {len(plan.groups)} groups."


def _group(group: Group, plan: Plan, pi: Mapping[str, Sequence[int]], first: CellBlock) -> Node:
    drawn = node("g", class_="group")
    for row, site in enumerate(group.sites):
        block = CellBlock(first.channels, first.top + (first.height + BETWEEN) * row)
        middle = block.top + block.height / 2
        drawn.append(text(_short(site.name), GUTTER - 12, middle + 4, "end", "site"))
        if row > group.lead:
            drawn.append(_arrow(middle - (first.height + BETWEEN) * (row - group.lead), middle))
        if row >= group.lead:
            used = pi.get(site.name) or prototype_of(site.channels, group.prototypes, plan.mapping).tolist()
            drawn.extend(_cells(site, group.prototypes, used, block, leads=row == group.lead))
        drawn.append(text(_size(site), CELLS + ROOM + 12, middle + 4, "start", "size"))
        said = f"{group.gates:,} gates" if row == group.lead else "follows" if row > group.lead else "linear"
        drawn.append(text(said, WIDTH - 4, middle + 4, "end", "gates" if row == group.lead else "size"))
    return drawn


def _cells(site: Site, prototypes: int, pi: Sequence[int], block: CellBlock, *, leads: bool) -> Iterator[Node]:
    """Path for the replicates of each prototype, and a stronger cell for each prototype of a leader."""
    for number in range(prototypes):
        users = [channel for channel, used in enumerate(pi) if used == number]
        replicates = [channel for channel in users if not (leads and channel == number)]
        colour = f"--hue:{number * GOLDEN % 360:.0f}"
        if replicates:
            title = node("title", f"{site.name}: gate {number} serves {len(replicates)} replicates")
            path = "".join(_outline(*block.cell(channel, tall=False)) for channel in replicates)
            yield node("path", title, d=path, style=colour, class_="replicate", data_channels=len(replicates))
        if leads:
            title = node("title", f"{site.name}: channel {number} computes gate {number}")
            x, y, width, height = block.cell(number, tall=True)
            kind = "prototype" if block.width > EDGED else "prototype narrow"
            yield node("rect", title, x=x, y=y, width=width, height=height, style=colour, class_=kind)


def _outline(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.2f} {y:g}h{width:.2f}v{height:g}h{-width:.2f}z"


def _arrow(start: float, end: float) -> Node:
    """Arrow from a leader down the gutter to a follower."""
    path = f"M{CELLS - 5:g} {start:g}H{GUTTER:g}V{end:g}H{CELLS - 6:g}m-5-3.5l5 3.5l-5 3.5"
    return node("path", d=path, class_="arrow")


def _size(site: Site) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, site.shape))


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"\N{HORIZONTAL ELLIPSIS}{name[1 - LETTERS :]}"
