"""Outcomes put together as rows of a table: one for each method and budget, over all its seeds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from deepshare.study.compare.definition import Study
from deepshare.study.compare.outcome import Outcome, Outcomes
from deepshare.text import byte_size
from deepshare.training.recipe.catalog import Finished

HEADER = (
    "method",
    "budget",
    "accuracy",
    "validation",
    "gates",
    "per 1,000 gates",
    "sent by a party",
    "rounds",
    "training",
    "seeds",
)
ALIGN = "<>>>>>>>>>"


@dataclass(frozen=True)
class Figure:
    """The mean over seeds, and the standard deviation if there are several."""

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """Make it of one value for each seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


@dataclass(frozen=True)
class Row:
    """One method at one budget, with all its seeds.

    Attributes:
        title: What the method is called.
        outcomes: One for each seed.
    """

    title: str
    outcomes: tuple[Outcome, ...]

    @property
    def method(self) -> str:
        """The method's name in the study."""
        return self.outcomes[0].method

    @property
    def budget(self) -> int | None:
        """Gates that it may have; None for all ReLUs."""
        return self.outcomes[0].budget

    @property
    def refused(self) -> str | None:
        """Why there is no result, if no seed has one."""
        return None if self.runs else self.outcomes[0].refused

    @property
    def runs(self) -> list[Finished]:
        """The finished runs."""
        return [outcome.run for outcome in self.outcomes if outcome.run]

    @property
    def test(self) -> Figure:
        """Accuracy on the test images after the last epoch, in percent."""
        return Figure.of([run.test for run in self.runs])

    @property
    def validation(self) -> Figure:
        """Likewise on the validation images."""
        return Figure.of([run.validation for run in self.runs])

    def with_seeds(self, seeds: Collection[int]) -> "Row":
        """The same without runs of other seeds."""
        return replace(self, outcomes=tuple(outcome for outcome in self.outcomes if outcome.seed in seeds))

    @property
    def gates(self) -> int:
        """The most gates of any seed."""
        return max(run.gates for run in self.runs)

    @property
    def seconds(self) -> float:
        """Mean time of training and validation."""
        return fmean(run.seconds for run in self.runs)

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows; see `HEADER`."""
        budget = "" if self.budget is None else f"{self.budget:,}"
        if not self.runs:
            return (self.title, budget, "no result", *[""] * 7)
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
            took(self.seconds),
            str(len(self.runs)),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
            "epochs": sum(self.runs[0].epochs.values()),
            "seconds": self.seconds,
            "seeds": [run.seed for run in self.runs],
        }


def rows(study: Study, outcomes: Outcomes, data: str) -> list[Row]:
    """All rows for some images: networks with all ReLUs first, then budget by budget, the most accurate first."""
    groups: dict[tuple[int, str], list[Outcome]] = {}
    for job, outcome in outcomes.items():
        if job.data == data:
            groups.setdefault((job.budget or 0, job.method), []).append(outcome)
    made = [Row(study.title(method), tuple(sorted(found, key=_seed))) for (_, method), found in groups.items()]
    return sorted(made, key=lambda row: (row.budget or 0, -row.test.mean if row.runs else 0.0, row.title))


def took(seconds: float) -> str:
    """A time in words.

    >>> took(3.2), took(90)
    ('3 s', '1.5 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _seed(outcome: Outcome) -> tuple[bool, int]:
    return outcome.run is None, outcome.seed
