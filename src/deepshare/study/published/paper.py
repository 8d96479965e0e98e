"""The paper's tables of results as data, for plots and tables beside measurements made here."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

BASELINE = "Baseline"
OURS = "DeepShare"
MEASURES = {"accuracy": "accuracy", "miou": "mIoU"}


class PaperModel(BaseModel):
    """Base of all entries of `paper.toml`: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedRow(PaperModel):
    """One method at one gate count.

    Attributes:
        method: Name of the method; the plain network is `BASELINE`.
        gates_k: ReLUs, in thousands.
        score: Accuracy or mIoU, in percent.
        ratio: Score per thousand ReLUs, as printed; None where the table has no such column.
        own_network: Whether the method uses an architecture of its own instead of the table's network.
    """

    method: str
    gates_k: float
    score: float
    ratio: float | None = None
    own_network: bool = False

    @property
    def title(self) -> str:
        """Name of the method, marked where it uses a network of its own."""
        return f"{self.method} (own network)" if self.own_network else self.method

    @property
    def gates(self) -> int:
        """Number of ReLUs."""
        return round(1000 * self.gates_k)


class PublishedTable(PaperModel):
    """A table of methods on one network and data set, each under its name in recipes and its printed title."""

    table: int
    network: str
    network_title: str
    data: str
    data_title: str
    measure: Literal["accuracy", "miou"]
    rows: tuple[PublishedRow, ...]

    @property
    def baseline(self) -> PublishedRow:
        """Row of the plain network."""
        return next(row for row in self.rows if row.method == BASELINE)

    @property
    def setup(self) -> tuple[str, str]:
        """Names of network and data set in recipes."""
        return self.network, self.data

    @property
    def counts(self) -> list[int]:
        """Gate counts of all rows except the baseline."""
        return [row.gates for row in self.rows if row.method != BASELINE]

    def of(self, method: str) -> tuple[PublishedRow, ...]:
        """Rows of one method, fewest gates first."""
        return tuple(sorted((row for row in self.rows if row.method == method), key=lambda row: row.gates_k))


class LaterRow(PublishedRow):
    """One method at one gate count, published elsewhere than in the paper.

    Attributes:
        network: Name of the network in recipes.
        network_title: Printed title of the network.
        data: Name of the data set in recipes.
        data_title: Printed title of the data set.
        source: Where it was published.
        note: Remark on the figure.
    """

    network: str
    network_title: str
    data: str
    data_title: str
    source: str
    note: str | None = None

    @property
    def title(self) -> str:
        """Name of the method, marked as published elsewhere."""
        return f"{self.method} (not in the paper: {self.source})"


class Ablation(PaperModel):
    """Score of the method with one component removed."""

    method: str
    score: float


class Ablations(PaperModel):
    """Table of ablations on one network, data set and budget."""

    table: int
    network: str
    data: str
    gates_k: float
    rows: tuple[Ablation, ...]


class Speedup(PaperModel):
    """Speedup of private inference over the plain network."""

    network: str
    data: str
    gates_k: float
    autorep: float
    deepshare: float


class Latency(PaperModel):
    """Table of speedups."""

    table: int
    rows: tuple[Speedup, ...]


class PaperTables(PaperModel):
    """All tables of results."""

    results: tuple[PublishedTable, ...]
    ablations: Ablations
    latency: Latency
    later: tuple[LaterRow, ...] = ()

    def later_than(self, table: PublishedTable) -> tuple[LaterRow, ...]:
        """Rows published elsewhere for the network and data set of a table."""
        return tuple(row for row in self.later if (row.network, row.data) == table.setup)

    def find(self, network: str, data: str) -> PublishedTable | None:
        """Table of a network and data set, by their names in recipes; None if the paper has none."""
        return next((table for table in self.results if table.setup == (network, data)), None)

    @property
    def methods(self) -> Sequence[str]:
        """All methods in the tables, without duplicates."""
        return list(dict.fromkeys(row.method for table in self.results for row in table.rows))

    @property
    def plotted(self) -> Sequence[str]:
        """All methods but the plain network, ours first: the order that gives each its colour in every plot."""
        return [OURS, *(method for method in self.methods if method not in (OURS, BASELINE))]


@cache
def load() -> PaperTables:
    """Read the packaged file."""
    file = resources.files("deepshare.study.published") / "paper.toml"
    content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    return PaperTables.model_validate(content)
