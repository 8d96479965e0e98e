"""The plan as a picture of the network: a row for each site, a cell for each channel, and who follows whom."""

from collections.abc import Iterator

from deepshare.sharing.gates import prototype_of
from deepshare.sharing.plan import Group, Plan
from deepshare.sharing.sites import Site
from deepshare.study.report.chart import WIDTH, legend, svg, text
from deepshare.study.report.markup import Node, node, section

ROW, CELL, GAP = 24.0, 18.0, 10.0
CELLS, ROOM = 236.0, 476.0  # where cells begin, and how much room they have
WIDEST, EDGED = 16.0, 6.0
GUTTER = CELLS - 20
# Successive multiples of it lie far apart on the circle, so that neighbours never look alike.
GOLDEN = 137.508
LETTERS = 30


def picture(plan: Plan, *, trimmed: bool = False) -> Node:
    """The section.

    Args:
        plan: The plan.
        trimmed: Whether the network was cut down to its prototypes.
    """
    drawn, y = svg(1, "the network's sites and channels", class_="network"), 4.0
    for group in plan.groups:
        drawn.append(_group(group, plan, y))
        y += ROW * len(group.sites) + GAP
    drawn.set("viewBox", f"0 0 {WIDTH:g} {y:g}")
    marks = legend(
        ("prototype", "prototype: computes its gate"), ("replicate", "replicate: uses the gate of its colour")
    )
    layers = "Along an arrow, a layer uses the gates of the first layer of its group. " if _shared_layers(plan) else ""
    cut = "In this network the replicates are cut off. " if trimmed else ""
    about = f"A row for each activation, a cell for each channel. {layers}{cut}{_sum(plan)}"
    return section("Who shares which gates", about, marks, drawn)


def _shared_layers(plan: Plan) -> bool:
    return any(group.followers for group in plan.groups)


def _sum(plan: Plan) -> str:
    prototypes = sum(group.prototypes for group in plan.groups)
    channels = sum(site.channels for site in plan.sites)
    return f"{prototypes:,} of {channels:,} channels are prototypes, in {len(plan.groups)} groups."


def _group(group: Group, plan: Plan, top: float) -> Node:
    drawn = node("g", class_="group")
    for row, site in enumerate(group.sites):
        y = top + ROW * row
        drawn.append(text(_short(site.name), GUTTER - 12, y + 14, "end", "site"))
        if row:
            drawn.append(_arrow(top + CELL / 2, y + CELL / 2))
        drawn.extend(_cells(site, group.prototypes, plan, y, leads=row == 0))
        drawn.append(text(_size(site), CELLS + ROOM + 10, y + 14, "start", "size"))
        said = f"{group.gates:,} gates" if row == 0 else "follows"
        drawn.append(text(said, WIDTH - 4, y + 14, "end", "size" if row else "gates"))
    return drawn


def _cells(site: Site, prototypes: int, plan: Plan, y: float, *, leads: bool) -> Iterator[Node]:
    """A path for the replicates of each prototype, and a taller cell for each prototype of a leader."""
    wide = min(WIDEST, ROOM / site.channels)
    gap = min(1.5, wide * 0.15)
    pi = prototype_of(site.channels, prototypes, plan.mapping).tolist()
    for number in range(prototypes):
        users = [channel for channel, used in enumerate(pi) if used == number]
        replicates = [channel for channel in users if not (leads and channel == number)]
        colour = f"--hue:{number * GOLDEN % 360:.0f}"
        if replicates:
            d = "".join(
                f"M{CELLS + c * wide:.2f} {y + 4:g}h{wide - gap:.2f}v{CELL - 8:g}h{gap - wide:.2f}z" for c in replicates
            )
            title = node("title", f"{site.name}: gate {number} serves {len(replicates)} replicates")
            yield node("path", title, d=d, style=colour, class_="replicate", data_channels=len(replicates))
        if leads:
            title = node("title", f"{site.name}: channel {number} computes gate {number}")
            place = {"x": CELLS + number * wide, "y": y, "width": wide - gap, "height": CELL}
            yield node("rect", title, style=colour, class_="prototype" if wide > EDGED else "prototype narrow", **place)


def _arrow(start: float, end: float) -> Node:
    """From the leader down the gutter to a follower."""
    path = f"M{CELLS - 5:g} {start:g}H{GUTTER:g}V{end:g}H{CELLS - 6:g}m-5-3.5l5 3.5l-5 3.5"
    return node("path", d=path, class_="arrow")


def _size(site: Site) -> str:
    return f"{site.channels} channels, {site.height}\N{MULTIPLICATION SIGN}{site.width}"


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"\N{HORIZONTAL ELLIPSIS}{name[1 - LETTERS :]}"
