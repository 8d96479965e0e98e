"""What a study says about the paper: its ablations and its order of methods beside ours, and DeepShare's variants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from deepshare.study.compare.definition import Study
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.rows import Row, rows
from deepshare.study.published import paper

NEAR = 1.25  # shares of the ReLUs count as the same up to this factor: methods stop at counts of their own
FULL = "deepshare"
ORDER_HEADER = ("gates", "the paper's order", "ours", "pairs in the paper's order")
ABLATION_HEADER = ("", "ours", "difference", "paper", "difference")
VARIANT_HEADER = ("", "budget", "accuracy", "difference", "validation", "difference", "seeds of both")


@dataclass(frozen=True)
class Table:
    """A table under a heading of its own.

    Attributes:
        title: The heading.
        header: Names of the columns.
        lines: The cells of each row.
        align: For each column `<` or `>`.
    """

    title: str
    header: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    align: str


def tables_beside(study: Study, outcomes: Outcomes) -> Iterator[Table]:
    """Those that there are results for, all from the first images of the study."""
    found = comparable(study, outcomes)
    if lines := orders(study, found):
        yield Table("The paper's order of methods, and ours", ORDER_HEADER, lines, "<<<>")
    if lines := ablations(study, found):
        yield Table(_ablation_title(study), ABLATION_HEADER, lines, "<>>>>")
    if lines := variants(study, found):
        yield Table("DeepShare and its variants", VARIANT_HEADER, lines, "<>>>>>>")
    if found and (theirs := theirs_of(study)):
        title = (
            f"Published: {theirs.network_title} of full width on {theirs.data_title} (the paper's table {theirs.table})"
        )
        header = ("method", "gates", "of all ReLUs", paper.MEASURES[theirs.measure], "per 1,000 gates")
        yield Table(title, header, published(theirs), "<>>>>")


def theirs_of(study: Study) -> paper.PublishedTable | None:
    """The paper's table that stands beside the study's."""
    return paper.load().find(study.published.network, study.published.data) if study.published else None


def published(theirs: paper.PublishedTable) -> list[tuple[str, ...]]:
    """Every row of the paper's table, fewest gates first; searches for architectures, which are not run here, too."""
    lines: list[tuple[str, ...]] = []
    for row in sorted(theirs.rows, key=lambda row: (row.gates, -row.score)):
        share, each = row.gates / theirs.baseline.gates, 1000 * row.score / row.gates
        lines.append((row.title, f"{row.gates:,}", f"{share:.2%}", f"{row.score:.2f}", f"{each:.2f}"))
    return lines


def comparable(study: Study, outcomes: Outcomes) -> list[Row]:
    """The finished rows within a budget, on the first images of the study."""
    return [row for row in rows(study, outcomes, next(iter(study.data))) if row.runs and row.budget]


def orders(study: Study, found: Sequence[Row]) -> list[tuple[str, ...]]:
    """For each budget the methods that the paper has at about the same share of its ReLUs, in both orders."""
    theirs = theirs_of(study)
    if not theirs:
        return []
    lines: list[tuple[str, ...]] = []
    for budget in sorted({row.budget for row in found if row.budget}):
        named = {study.methods[row.method].paper: row for row in found if row.budget == budget}
        share = budget / max(row.runs[0].neurons for row in found)  # some methods have narrower networks
        near = [
            row for row in theirs.rows if row.method in named and _is_near(share, row.gates / theirs.baseline.gates)
        ]
        pairs = list(combinations(sorted(near, key=lambda row: -row.score), 2))
        if not pairs:
            continue
        alike = sum(named[better.method].test.mean > named[worse.method].test.mean for better, worse in pairs)
        published = ", ".join(f"{row.method} {row.score:.2f}" for row in sorted(near, key=lambda row: -row.score))
        ours = sorted((named[row.method] for row in near), key=lambda row: -row.test.mean)
        said = ", ".join(f"{study.methods[row.method].paper} {row.test}" for row in ours)
        lines.append((f"{share:.2%}", published, said, f"{alike} of {len(pairs)}"))
    return lines


def _is_near(share: float, other: float) -> bool:
    return 1 / NEAR <= share / other <= NEAR


def ablations(study: Study, found: Sequence[Row]) -> list[tuple[str, ...]]:
    """Our ablations beside the paper's, each with its difference from the full method."""
    if study.published is None:
        return []
    ours = {row.method: row for row in found if row.budget == study.published.ablations_at}
    named = {entry.ablation: ours[name] for name, entry in study.methods.items() if entry.ablation and name in ours}
    published = paper.load().ablations.rows
    full = published[0]
    if full.method not in named or len(named) < 2:
        return []
    lines: list[tuple[str, ...]] = []
    for theirs in published:
        row = named.get(theirs.method)
        difference = "" if row is None else _difference(row.test.mean, named[full.method].test.mean)
        figure = "not run yet" if row is None else str(row.test)
        lines.append((theirs.method, figure, difference, f"{theirs.score:.2f}", _difference(theirs.score, full.score)))
    return lines


def variants(study: Study, found: Sequence[Row]) -> list[tuple[str, ...]]:
    """DeepShare with one change each, save its ablations, with the difference from DeepShare at the same budget.

    Differences are over the seeds that both have: a seed decides the order of the images, and where weights start.
    """
    full = {row.budget: row for row in found if row.method == FULL}
    lines: list[tuple[str, ...]] = []
    for row in found:
        entry = study.methods[row.method]
        base = full.get(row.budget)
        if base is None or (entry.like, entry.ablation) != (FULL, None):
            continue
        both = {run.seed for run in row.runs} & {run.seed for run in base.runs}
        one, other = row.with_seeds(both), base.with_seeds(both)
        if not both:
            continue
        cells = (
            *(str(row.test), _difference(one.test.mean, other.test.mean)),
            *(str(row.validation), _difference(one.validation.mean, other.validation.mean)),
        )
        lines.append((row.title, f"{row.budget:,}", *cells, str(len(both))))
    return lines


def _difference(one: float, other: float) -> str:
    return f"{one - other:+.2f}"


def _ablation_title(study: Study) -> str:
    theirs = paper.load().ablations
    ours = study.published.ablations_at if study.published else 0
    alike = ours == 1000 * theirs.gates_k
    said = "the paper's" if alike else f"the paper's at {theirs.gates_k:g}K gates of its larger network"
    return f"Ablations at {ours:,} gates, beside {said}"
