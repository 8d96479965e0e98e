"""Tables of a study: results by method and budget, and comparisons with the paper and among DeepShare's variants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

from deepshare.study.compare.outcome import Outcomes, RunOutcome, best_epoch
from deepshare.study.compare.study_file import Study, start_epochs
from deepshare.study.published import paper
from deepshare.text import byte_size
from deepshare.training.catalog import Finished

HEADER = (
    "method",
    "budget",
    "accuracy",
    "validation",
    "gates",
    "per 1,000 gates",
    "sent by a party",
    "rounds",
    "epochs",
    "training",
    "seeds",
)
ALIGN = "<>>>>>>>>>>"
NEAR = 1.25  # factor up to which shares of the ReLUs count as equal, since methods stop at different gate counts
FULL = "deepshare"
DIVERGED = 0.5  # share of its own best below which a run counts as diverged
ORDER_HEADER = ("gates", "the paper's order", "ours", "pairs in the paper's order")
ABLATION_HEADER = ("", "ours", "difference", "paper", "difference")
PRIVATE_HEADER = ("", "gates", "of max-pooling", "compared in a row", "rounds", "sent by a party", "before the image")
VARIANT_HEADER = ("", "budget", "accuracy", "difference", "validation", "difference", "seeds, its and DeepShare's")


@dataclass(frozen=True)
class SeedMean:
    """Mean over seeds, and the standard deviation if there are several."""

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedMean":
        """Compute from one value per seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


@dataclass(frozen=True)
class MethodRow:
    """One method at one budget, over all its seeds.

    Attributes:
        title: Name of the method.
        outcomes: One outcome per seed.
        before: Epochs of the trained network that it starts from.
    """

    title: str
    outcomes: tuple[RunOutcome, ...]
    before: int = 0

    @property
    def method(self) -> str:
        """Key of the method in the study."""
        return self.outcomes[0].method

    @property
    def budget(self) -> int | None:
        """Budget of gates; None for all ReLUs."""
        return self.outcomes[0].budget

    @property
    def refused(self) -> str | None:
        """Reason for a missing result, if no seed has one."""
        return None if self.runs else self.outcomes[0].refused

    @property
    def runs(self) -> list[Finished]:
        """Finished runs."""
        return [outcome.run for outcome in self.outcomes if outcome.run]

    @property
    def test(self) -> SeedMean:
        """Test accuracy after the last epoch, in percent."""
        return SeedMean.of([run.test for run in self.runs])

    @property
    def validation(self) -> SeedMean:
        """Validation accuracy after the last epoch, in percent."""
        return SeedMean.of([run.validation for run in self.runs])

    @property
    def diverged(self) -> set[int]:
        """Seeds of runs that ended far below their own best epoch, or far below the best seed."""
        best = max((run.test for run in self.runs), default=0.0)
        found = {run.seed for run in self.runs if run.test < DIVERGED * best}
        for outcome in self.outcomes:
            values = [value for phase in (outcome.curve or {}).values() for value in phase]
            if outcome.run and values and outcome.run.validation < DIVERGED * max(values):
                found.add(outcome.seed)
        return found

    @property
    def steady(self) -> "MethodRow":
        """The same without the seeds that diverged."""
        lost = self.diverged
        return replace(self, outcomes=tuple(outcome for outcome in self.outcomes if outcome.seed not in lost))

    @property
    def gates(self) -> int:
        """Largest gate count of any seed."""
        return max(run.gates for run in self.runs)

    @property
    def epochs(self) -> int:
        """Epochs of training, without those of the network that it starts from."""
        return max(sum(run.epochs.values()) for run in self.runs)

    @property
    def seconds(self) -> float:
        """Mean time of training and validation, in seconds."""
        return fmean(run.seconds for run in self.runs)

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of its row; see `HEADER`."""
        budget = "" if self.budget is None else f"{self.budget:,}"
        if not self.runs:
            return (self.title, budget, "no result", *[""] * 8)
        cost = self.outcomes[0].private
        private = (byte_size(cost.sent), f"{cost.rounds:,}") if cost else ("not known", "")
        return (
            self.title,
            budget,
            str(self.test),
            str(self.validation),
            f"{self.gates:,}",
            f"{1000 * self.test.mean / self.gates:.2f}" if self.gates else "",
            *private,
            f"{self.before} + {self.epochs}" if self.before else str(self.epochs),
            took(self.seconds),
            str(len(self.runs)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        first = self.outcomes[0]
        said = {"method": self.method, "title": self.title, "data": first.data, "budget": self.budget}
        if not self.runs:
            return {**said, "refused": self.refused}
        return {
            **said,
            "accuracy": self.test.mean,
            "spread": self.test.spread,
            "validation": self.validation.mean,
            "gates": self.gates,
            "accuracy_per_1000_gates": 1000 * self.test.mean / self.gates if self.gates else None,
            "private": first.private and first.private.model_dump(),
            "searched": first.searched,
            "epochs": self.epochs,
            "epochs_before": self.before,
            "seconds": self.seconds,
            "seeds": [run.seed for run in self.runs],
        }


def rows(study: Study, outcomes: Outcomes, data: str) -> list[MethodRow]:
    """All rows for the given images: networks with all ReLUs, then budget by budget, the most accurate first."""
    groups: dict[tuple[int, str], list[RunOutcome]] = {}
    for job, outcome in outcomes.items():
        if job.data == data:
            groups.setdefault((job.budget or 0, job.method), []).append(outcome)
    made = [
        MethodRow(study.title(method), tuple(sorted(found, key=_seed)), start_epochs(study, found[0].job))
        for (_, method), found in groups.items()
    ]
    return sorted(made, key=lambda row: (row.budget or 0, -row.test.mean if row.runs else 0.0, row.title))


def best_validation(study: Study, row: MethodRow) -> SeedMean | None:
    """Validation accuracy in the best epochs, see `outcome.best_epoch`; None if a seed's is not known."""
    found = [best_epoch(study, outcome) for outcome in row.outcomes if outcome.run]
    known = [best[1] for best in found if best]
    return SeedMean.of(known) if known and len(known) == len(found) else None


def rows_by_images(study: Study, outcomes: Outcomes) -> Iterator[tuple[str, list[MethodRow]]]:
    """Training images that have results, by name, with their rows."""
    for data in study.data:
        if found := rows(study, outcomes, data):
            yield data, found


def took(seconds: float) -> str:
    """Format a duration.

    >>> took(3.2), took(90)
    ('3 s', '1.5 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _seed(outcome: RunOutcome) -> tuple[bool, int]:
    return outcome.run is None, outcome.seed


@dataclass(frozen=True)
class Table:
    """A table with a heading.

    Attributes:
        title: The heading.
        header: Names of the columns.
        lines: Cells of each row.
        align: `<` or `>` per column.
    """

    title: str
    header: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    align: str


def private_table(found: Sequence[MethodRow], engine: str) -> Table | None:
    """Cost of private inference by method, beside the gates of max-pooling; None where no outcome has it."""
    lines = []
    for row in found:
        cost, pooled = row.outcomes[0].private, row.outcomes[0].pool_gates
        if not row.runs or cost is None or cost.dealt is None:
            continue
        where = row.title if row.budget is None else f"{row.title} at {row.budget:,}"
        counts = (row.gates, pooled, cost.in_a_row, cost.rounds)
        cells = ("" if count is None else f"{count:,}" for count in counts)
        lines.append((where, *cells, byte_size(cost.sent), byte_size(cost.dealt)))
    return Table(f"One image with {engine}, predicted", PRIVATE_HEADER, lines, "<>>>>>>") if lines else None


def comparisons(study: Study, outcomes: Outcomes) -> Iterator[Table]:
    """Tables that compare with the paper and among variants, on the first images of the study, if there are results."""
    found = comparable(study, outcomes)
    if lines := orders(study, found):
        yield Table("The paper's order of methods, and ours", ORDER_HEADER, lines, "<<<>")
    if parts := ablation_table(study, outcomes):
        yield parts
    if lines := variants(study, found):
        yield Table("DeepShare and its variants", VARIANT_HEADER, lines, "<>>>>>>")
    if found and (published := published_table(study)):
        network, data = published.network_title, published.data_title
        title = f"Published: {network} of full width on {data} (the paper's table {published.table})"
        header = ("method", "gates", "of all ReLUs", paper.MEASURES[published.measure], "per 1,000 gates")
        yield Table(title, header, published_lines(published), "<>>>>")


def ablation_table(study: Study, outcomes: Outcomes) -> Table | None:
    """Ablations beside the paper's, on the first images of the study; None without results."""
    lines = ablations(study, comparable(study, outcomes))
    return Table(_ablation_title(study), ABLATION_HEADER, lines, "<>>>>") if lines else None


def published_table(study: Study) -> paper.PublishedTable | None:
    """Table of the paper that the study refers to."""
    return paper.load().find(study.published.network, study.published.data) if study.published else None


def published_lines(published: paper.PublishedTable) -> list[tuple[str, ...]]:
    """All rows of a table of the paper, fewest gates first, including architecture searches, which are not run here.

    Rows that were published elsewhere are marked as such.
    """
    lines: list[tuple[str, ...]] = []
    every = (*published.rows, *paper.load().later_than(published))
    for row in sorted(every, key=lambda row: (row.gates, -row.score)):
        share, each = row.gates / published.baseline.gates, 1000 * row.score / row.gates
        lines.append((row.title, f"{row.gates:,}", f"{share:.2%}", f"{row.score:.2f}", f"{each:.2f}"))
    return lines


def comparable(study: Study, outcomes: Outcomes) -> list[MethodRow]:
    """Finished rows with a budget, on the first images of the study."""
    return [row for row in rows(study, outcomes, next(iter(study.data))) if row.runs and row.budget]


def orders(study: Study, found: Sequence[MethodRow]) -> list[tuple[str, ...]]:
    """Order of methods in the paper and here, per budget, for methods that the paper has at a similar ReLU share."""
    published = published_table(study)
    if not published:
        return []
    lines: list[tuple[str, ...]] = []
    for budget in sorted({row.budget for row in found if row.budget}):
        named = {
            study.methods[row.method].paper: row.steady for row in found if row.budget == budget and row.steady.runs
        }
        share = budget / max(row.runs[0].neurons for row in found)  # some methods have narrower networks
        theirs_at = study.published.like.get(str(budget)) if study.published else None
        wanted = theirs_at / published.baseline.gates if theirs_at else share
        near = [
            row
            for row in published.rows
            if row.method in named and _is_near(wanted, row.gates / published.baseline.gates)
        ]
        pairs = list(combinations(sorted(near, key=lambda row: -row.score), 2))
        if not pairs:
            continue
        alike = sum(named[better.method].test.mean > named[worse.method].test.mean for better, worse in pairs)
        theirs = ", ".join(f"{row.method} {row.score:.2f}" for row in sorted(near, key=lambda row: -row.score))
        ranked = sorted((named[row.method] for row in near), key=lambda row: -row.test.mean)
        ours = ", ".join(f"{study.methods[row.method].paper} {row.test}" for row in ranked)
        lines.append((f"{share:.2%}", theirs, ours, f"{alike} of {len(pairs)}"))
    return lines


def _is_near(share: float, other: float) -> bool:
    return 1 / NEAR <= share / other <= NEAR


def ablations(study: Study, found: Sequence[MethodRow]) -> list[tuple[str, ...]]:
    """Ablations here and in the paper, each with its difference from the full method."""
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


def variants(study: Study, found: Sequence[MethodRow]) -> list[tuple[str, ...]]:
    """Variants of DeepShare except its ablations, with the difference of means from DeepShare at the same budget."""
    full = {row.budget: row for row in found if row.method == FULL}
    lines: list[tuple[str, ...]] = []
    for row in found:
        entry = study.methods[row.method]
        base = full.get(row.budget)
        if base is None or entry.ablation or not _is_variant(study, row.method):
            continue
        cells = (
            *(str(row.test), _difference(row.test.mean, base.test.mean)),
            *(str(row.validation), _difference(row.validation.mean, base.validation.mean)),
        )
        lines.append((row.title, f"{row.budget:,}", *cells, f"{len(row.runs)} and {len(base.runs)}"))
    return lines


def _is_variant(study: Study, method: str) -> bool:
    """Return True if a method is derived from DeepShare, directly or by another variant."""
    like = study.methods[method].like
    return like is not None and (like == FULL or _is_variant(study, like))


def _difference(one: float, other: float) -> str:
    return f"{one - other:+.2f}"


def _ablation_title(study: Study) -> str:
    theirs = paper.load().ablations
    ours = study.published.ablations_at if study.published else 0
    alike = ours == 1000 * theirs.gates_k
    said = "the paper's" if alike else f"the paper's at {theirs.gates_k:g}K gates of its larger network"
    return f"Ablations at {ours:,} gates, beside {said}"
