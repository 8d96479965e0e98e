"""Score against gates: our runs, and what the paper reports for the same network and data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepshare.study.published import paper
from deepshare.study.report.chart import WIDTH, Panel, Point, Scale, framed, legend, spread, svg, text, wide
from deepshare.study.report.markup import Node, node, section, table
from deepshare.study.report.run import Run, short_names

LEFT, RIGHT, TOP = 58.0, WIDTH - 44, 34.0
TALL, FLAT = 330.0, 230.0  # where the chart ends, with the paper's points and without
LETTER = 7.4
TITLES = {"accuracy": "Accuracy against gates", "miou": "mIoU against gates"}

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Frontier:
    """The runs on one data set and the paper's tables for their networks."""

    runs: tuple[Run, ...]
    tables: tuple[paper.PublishedTable, ...]

    @property
    def narrower(self) -> list[str]:
        """What to say of runs whose network has another number of ReLUs than the paper's of the same name."""
        said = []
        for results in self.tables:
            here = {run.neurons for run in self.runs if run.recipe.model.name == results.network}
            other = sorted(count for count in here if abs(count / results.baseline.gates - 1) > 0.01)
            if other:
                counts = " and ".join(f"{count:,}" for count in other)
                paper_has = f"The paper's {results.network_title} has {results.baseline.gates:,} ReLUs"
                said.append(f"{paper_has}, the one trained here {counts}: the points are for another size of it.")
        return said


def frontiers(runs: Sequence[Run]) -> list[Frontier]:
    """The runs by data set, in the order in which they were given."""
    names = list(dict.fromkeys(run.recipe.data.name for run in runs))
    return [_frontier([run for run in runs if run.recipe.data.name == name]) for name in names]


def _frontier(runs: Sequence[Run]) -> Frontier:
    wanted = dict.fromkeys((run.recipe.model.name, run.recipe.data.name) for run in runs)
    found = (paper.load().find(network, data) for network, data in wanted)
    return Frontier(tuple(runs), tuple(results for results in found if results))


def chart(frontier: Frontier) -> Node:
    """The section."""
    runs, tables = frontier.runs, frontier.tables
    name, bottom = paper.MEASURES[runs[0].measure], TALL if tables else FLAT
    points = [(run.gates, 100 * run.score) for run in runs]
    points += [(row.gates, row.score) for results in tables for row in results.rows]
    counts = [max(gates, 1) for gates, _ in points] + [run.neurons for run in runs]
    x = Scale(*wide(counts, 1.5), LEFT, RIGHT, logarithmic=True)
    low, high = spread((score for _, score in points), least=4)
    panel = Panel(x, Scale(max(low, 0), min(high, 100.5), bottom, TOP))
    drawn = svg(bottom + 50, f"{name} against gates")
    drawn.append(panel.grid(lambda gates: f"{gates:,.0f}", lambda score: f"{score:g}", f"{name}, %"))
    drawn.append(text("gates for one image", (LEFT + RIGHT) / 2, bottom + 38, "middle"))
    places = [panel.place((max(gates, 1), score)) for gates, score in points]
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places[: len(runs)]]
    theirs = [(x - 5, y - 5, x + 5, y + 5) for x, y in places[len(runs) :]]
    drawn.extend(_everything(panel, sorted({run.neurons for run in runs}), taken, theirs))
    marks, names = _ours(runs, places, taken)
    published = [mark for results in tables for mark in _published(panel, results)]
    drawn.extend([*marks, *published, *names])  # the paper's smaller marks may lie upon ours
    title = TITLES[runs[0].measure]
    if not tables:
        about = "Up and to the left is better. The paper has no table for this network and data set."
        return section(title, about, framed(drawn))
    about = " ".join(["Up and to the left is better. Small marks are the paper's.", *frontier.narrower])
    rows = [_details(results) for results in tables]
    return section(title, about, _legend(tables), framed(drawn), *rows)


def colour(method: str) -> str:
    """The class of a method in the style sheet."""
    return f"m{list(paper.load().methods).index(method)}"


def _everything(panel: Panel, counts: Sequence[int], taken: list[Box], others: Sequence[Box]) -> Iterator[Node]:
    """A line where a network has all its ReLUs, with words as low as there is room; what they take is added."""
    bottom = panel.y.start
    for count in counts:
        x, words = panel.x.at(count), f"all {count:,} ReLUs"
        lows = [bottom - 4 - 4 * step for step in range(int(bottom - TOP - 16) // 4)]
        boxes = [(x - 6 - 6.4 * len(words), low - 16, x - 6, low) for low in lows]
        free = (box for box in boxes if not any(_meet(box, other) for other in (*taken, *others)))
        taken.append(next(free, boxes[0]))
        yield node("path", d=f"M{x:.1f} {bottom}V{TOP}", class_="everything")
        yield text(words, x - 6, taken[-1][3] - 4, "end")


def _published(panel: Panel, results: paper.PublishedTable) -> list[Node]:
    best = results.of(paper.OURS)
    marks = [panel.line([(row.gates, row.score) for row in best], "paper")] if len(best) > 1 else []
    for row in results.rows:
        x, y = panel.place((row.gates, row.score))
        said = (
            f"{row.method}, {results.network_title}: {row.score:g}% with {row.gates_k:g}K ReLUs (table {results.table})"
        )
        marks.append(node("circle", node("title", said), cx=x, cy=y, r=4.5, class_=f"paper {colour(row.method)}"))
    return marks


def _ours(runs: Sequence[Run], places: Sequence[Point], taken: list[Box]) -> tuple[list[Node], list[Node]]:
    """A diamond for each run, and its name where there is room for it."""
    marks, names = [], []
    for run, name, (x, y) in zip(runs, short_names(runs), places, strict=False):
        said = f"{run.name}: {run.score:.2%} with {run.gates:,} gates"
        marks.append(node("path", node("title", said), d=f"M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8-8z", class_="ours"))
        taken.append(_room(x, y, LETTER * len(name), taken))
        names.append(text(name, taken[-1][0], taken[-1][3] - 4, "start", "ours"))
    return marks, names


def _room(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """A box for a name near a mark, the first that covers nothing; beside the mark if there is none."""
    lefts = [(x + 13, 0), (x - 13 - width, 0), (x - width / 2, -19), (x - width / 2, 19)]
    further = [(left, way * down) for down in (15, 30, 45, 60) for way in (1, -1) for left in (x + 13, x - 13 - width)]
    boxes = [(left, y + down - 8, left + width, y + down + 8) for left, down in (*lefts, *further)]
    free = (box for box in boxes if box[0] > LEFT and box[2] < RIGHT and not any(_meet(box, other) for other in taken))
    return next(free, boxes[0])


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(tables: Sequence[paper.PublishedTable]) -> Node:
    methods = dict.fromkeys(row.method for results in tables for row in results.rows)
    return legend(("ours", "this report"), *((f"paper {colour(method)}", method) for method in methods))


def _details(results: paper.PublishedTable) -> Node:
    rows = [(row.title, f"{row.gates_k:g}", f"{row.score:.2f}") for row in results.rows]
    title = f"Table {results.table} of the paper: {results.network_title} on {results.data_title}"
    header = ("method", "ReLUs (K)", f"{paper.MEASURES[results.measure]} (%)")
    return node("details", node("summary", title), table(header, rows, "<>>", class_="paper"))
