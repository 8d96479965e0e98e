"""Figures of committed records, as pages write them."""

import json
from functools import cache
from typing import Any

from deepshare.study.compare.outcome import read_all
from deepshare.study.compare.study_file import load_study
from deepshare.study.compare.tables import MethodRow, comparable, orders, rows
from deepshare.training.catalog import Finished, record
from tests.docs.pages import ROOT

RESULTS = ROOT / "results"


class StudyRecords:
    """Results of a study."""

    def __init__(self, name: str) -> None:
        self.study = load_study(name)
        self.outcomes = read_all(self.study, RESULTS / "compare" / name)

    def row(self, method: str, budget: int | None, data: str = "subset") -> MethodRow:
        """All seeds of a method at a budget."""
        found = [row for row in rows(self.study, self.outcomes, data) if (row.method, row.budget) == (method, budget)]
        assert len(found) == 1, f"no result of {method} at {budget}"
        return found[0]

    def one(self, method: str, budget: int, data: str = "subset") -> str:
        """Test accuracy of a method that has one seed."""
        (run,) = self.row(method, budget, data).runs
        return f"{run.test:.2f}"

    def mean(self, method: str, budget: int) -> list[str]:
        """Mean over all seeds of a method, and their standard deviation if it has several."""
        return str(self.row(method, budget).test).split(" ± ")

    def three(self, method: str, budget: int) -> list[str]:
        """Mean and standard deviation of a method that has three seeds."""
        row = self.row(method, budget)
        assert len(row.runs) == 3
        return str(row.test).split(" ± ")

    def seeds(self, method: str, budget: int) -> list[str]:
        """Test accuracy of each seed, the best first."""
        return [f"{run.test:.2f}" for run in sorted(self.row(method, budget).runs, key=lambda run: -run.test)]

    def private(self, method: str, budget: int) -> list[str]:
        """Rounds, and megabytes that a party sends."""
        cost = self.row(method, budget).outcomes[0].private
        assert cost is not None
        return [str(cost.rounds), f"{cost.sent / 1e6:.1f}"]

    def pairs(self, share: str) -> list[str]:
        """Pairs in the paper's order at a share of the ReLUs, and all of them."""
        line = next(line for line in orders(self.study, comparable(self.study, self.outcomes)) if line[0] == share)
        return line[-1].split(" of ")

    def share(self, budget: int) -> str:
        """A budget in percent of the ReLUs."""
        return f"{100 * budget / self.row('teacher', None).runs[0].neurons:.4g}"

    def epochs(self, method: str, budget: int | None, data: str = "subset") -> list[str]:
        """Epochs of each phase."""
        return [str(epochs) for epochs in self.row(method, budget, data).runs[0].epochs.values()]


small = cache(lambda: StudyRecords("small"))
fair = cache(lambda: StudyRecords("fair"))
pools = cache(lambda: StudyRecords("pools"))


@cache
def run(folder: str) -> Finished:
    """Record of a run folder in `results/`."""
    return record(RESULTS / folder)


@cache
def content(file: str) -> Any:
    """Content of a JSON file in `results/`."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def percent(value: float, digits: int = 2) -> str:
    """A share in percent."""
    return f"{100 * value:.{digits}f}"


def last_line(folder: str) -> dict[str, Any]:
    """Last epoch of a run folder in `results/`."""
    line: dict[str, Any] = json.loads((RESULTS / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return line
