"""Section of score against gates: the runs, and the paper's results for the same network and data set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepshare.study.published import paper
from deepshare.study.report.chart import WIDTH, AxisScale, Panel, Point, framed, legend, spread, svg, text, wide
from deepshare.study.report.markup import Node, node, section, table
from deepshare.study.report.run import Run, short_names

LEFT, RIGHT, TOP = 58.0, WIDTH - 44, 34.0
TALL, FLAT = 330.0, 230.0  # bottom of the chart with and without the paper's points
LETTER = 7.4
TITLES = {"accuracy": "Accuracy against gates", "miou": "mIoU against gates"}

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Frontier:
    """Runs on one data set, and the paper's tables for their networks."""

    runs: tuple[Run, ...]
    tables: tuple[paper.PublishedTable, ...]

    @property
    def narrower(self) -> list[str]:
        """Remarks on runs whose network differs in its number of ReLUs from the paper's network of the same name."""
        said = []
        for published in self.tables:
            here = {run.neurons for run in self.runs if run.recipe.model.name == published.network}
            other = sorted(count for count in here if abs(count / published.baseline.gates - 1) > 0.01)
            if other:
                counts = " and ".join(f"{count:,}" for count in other)
                paper_has = f"The paper's {published.network_title} has {published.baseline.gates:,} ReLUs"
                said.append(f"{paper_has}, the one trained here {counts}: the points are for another size of it.")
        return said


def frontiers(runs: Sequence[Run]) -> list[Frontier]:
    """Group the runs by data set, in the order given."""
    names = list(dict.fromkeys(run.recipe.data.name for run in runs))
    return [_frontier([run for run in runs if run.recipe.data.name == name]) for name in names]


def _frontier(runs: Sequence[Run]) -> Frontier:
    wanted = dict.fromkeys((run.recipe.model.name, run.recipe.data.name) for run in runs)
    found = (paper.load().find(network, data) for network, data in wanted)
    return Frontier(tuple(runs), tuple(published for published in found if published))


def frontier_section(frontier: Frontier) -> Node:
    """Section with a chart of score against gates, and the paper's tables."""
    runs, tables = frontier.runs, frontier.tables
    name, bottom = paper.MEASURES[runs[0].measure], TALL if tables else FLAT
    points = [(run.gates, 100 * run.score) for run in runs]
    points += [(row.gates, row.score) for published in tables for row in published.rows]
    counts = [max(gates, 1) for gates, _ in points] + [run.neurons for run in runs]
    x = AxisScale(*wide(counts, 1.5), LEFT, RIGHT, logarithmic=True)
    low, high = spread((score for _, score in points), least=4)
    panel = Panel(x, AxisScale(max(low, 0), min(high, 100.5), bottom, TOP))
    drawn = svg(bottom + 50, f"{name} against gates")
    drawn.append(panel.grid(lambda gates: f"{gates:,.0f}", lambda score: f"{score:g}", f"{name}, %"))
    drawn.append(text("gates for one image", (LEFT + RIGHT) / 2, bottom + 38, "middle"))
    places = [panel.place((max(gates, 1), score)) for gates, score in points]
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places[: len(runs)]]
    theirs = [(x - 5, y - 5, x + 5, y + 5) for x, y in places[len(runs) :]]
    drawn.extend(_everything(panel, sorted({run.neurons for run in runs}), taken, theirs))
    marks, names = _ours(runs, places, taken)
    theirs_drawn = [mark for published in tables for mark in _published(panel, published)]
    drawn.extend([*marks, *theirs_drawn, *names])  # the paper's marks are smaller and may lie on top of ours
    title = TITLES[runs[0].measure]
    if not tables:
        about = "Up and to the left is better. The paper has no table for this network and data set."
        return section(title, about, framed(drawn))
    about = " ".join(["Up and to the left is better. Small marks are the paper's.", *frontier.narrower])
    rows = [_details(published) for published in tables]
    return section(title, about, _legend(tables), framed(drawn), *rows)


def colour(method: str) -> str:
    """Style sheet class of a method."""
    return f"m{list(paper.load().methods).index(method)}"


def _everything(panel: Panel, counts: Sequence[int], taken: list[Box], others: Sequence[Box]) -> Iterator[Node]:
    """Line at a network's full ReLU count, labelled as low as there is room; adds the label's box to `taken`."""
    bottom = panel.y.start
    for count in counts:
        x, words = panel.x.at(count), f"all {count:,} ReLUs"
        lows = [bottom - 4 - 4 * step for step in range(int(bottom - TOP - 16) // 4)]
        boxes = [(x - 6 - 6.4 * len(words), low - 16, x - 6, low) for low in lows]
        free = (box for box in boxes if not any(_meet(box, other) for other in (*taken, *others)))
        taken.append(next(free, boxes[0]))
        yield node("path", d=f"M{x:.1f} {bottom}V{TOP}", class_="everything")
        yield text(words, x - 6, taken[-1][3] - 4, "end")


def _published(panel: Panel, published: paper.PublishedTable) -> list[Node]:
    best = published.of(paper.OURS)
    marks = [panel.line([(row.gates, row.score) for row in best], "paper")] if len(best) > 1 else []
    for row in published.rows:
        x, y = panel.place((row.gates, row.score))
        where = f"{row.gates_k:g}K ReLUs (table {published.table})"
        said = f"{row.method}, {published.network_title}: {row.score:g}% with {where}"
        marks.append(node("circle", node("title", said), cx=x, cy=y, r=4.5, class_=f"paper {colour(row.method)}"))
    return marks


def _ours(runs: Sequence[Run], places: Sequence[Point], taken: list[Box]) -> tuple[list[Node], list[Node]]:
    """Diamond per run, and its name where there is room."""
    marks, names = [], []
    for run, name, (x, y) in zip(runs, short_names(runs), places, strict=False):
        said = f"{run.name}: {run.score:.2%} with {run.gates:,} gates"
        marks.append(node("path", node("title", said), d=f"M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8-8z", class_="ours"))
        taken.append(_room(x, y, LETTER * len(name), taken))
        names.append(text(name, taken[-1][0], taken[-1][3] - 4, "start", "ours"))
    return marks, names


def _room(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """First box for a name near a mark that covers nothing; beside the mark if there is none."""
    lefts = [(x + 13, 0), (x - 13 - width, 0), (x - width / 2, -19), (x - width / 2, 19)]
    further = [(left, way * down) for down in (15, 30, 45, 60) for way in (1, -1) for left in (x + 13, x - 13 - width)]
    boxes = [(left, y + down - 8, left + width, y + down + 8) for left, down in (*lefts, *further)]
    free = (box for box in boxes if box[0] > LEFT and box[2] < RIGHT and not any(_meet(box, other) for other in taken))
    return next(free, boxes[0])


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(tables: Sequence[paper.PublishedTable]) -> Node:
    methods = dict.fromkeys(row.method for published in tables for row in published.rows)
    return legend(("ours", "this report"), *((f"paper {colour(method)}", method) for method in methods))


def _details(published: paper.PublishedTable) -> Node:
    rows = [(row.title, f"{row.gates_k:g}", f"{row.score:.2f}") for row in published.rows]
    title = f"Table {published.table} of the paper: {published.network_title} on {published.data_title}"
    header = ("method", "ReLUs (K)", f"{paper.MEASURES[published.measure]} (%)")
    return node("details", node("summary", title), table(header, rows, "<>>", class_="paper"))
