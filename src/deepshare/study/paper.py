"""What the paper reports: its tables of results as data, for plots and tables beside our own figures."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

BASELINE = "Baseline"
OURS = "DeepShare"
MEASURES = {"accuracy": "accuracy", "miou": "mIoU"}


class Entry(BaseModel):
    """The rules of every entry of the file: nothing unknown, nothing changed later."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Entry):
    """One method at one count of gates.

    Attributes:
        method: Its name; the plain network is `BASELINE`.
        gates_k: ReLUs, in thousands.
        score: Accuracy or mIoU, in percent.
        ratio: The score for each thousand ReLUs, as printed; None where the table has no such column.
        own_network: Whether the method has an architecture of its own instead of the table's network.
    """

    method: str
    gates_k: float
    score: float
    ratio: float | None = None
    own_network: bool = False

    @property
    def title(self) -> str:
        """The method, marked where it has a network of its own."""
        return f"{self.method} (own network)" if self.own_network else self.method

    @property
    def gates(self) -> int:
        """ReLUs."""
        return round(1000 * self.gates_k)


class Results(Entry):
    """A table that compares methods on one network and one data set, both named as in recipes and as in print."""

    table: int
    network: str
    network_title: str
    data: str
    data_title: str
    measure: Literal["accuracy", "miou"]
    rows: tuple[Row, ...]

    @property
    def baseline(self) -> Row:
        """The plain network."""
        return next(row for row in self.rows if row.method == BASELINE)

    @property
    def setup(self) -> tuple[str, str]:
        """Network and data, named as in recipes."""
        return self.network, self.data

    @property
    def counts(self) -> list[int]:
        """The gates of every row but the baseline's."""
        return [row.gates for row in self.rows if row.method != BASELINE]

    def of(self, method: str) -> tuple[Row, ...]:
        """The rows of one method, fewest gates first."""
        return tuple(sorted((row for row in self.rows if row.method == method), key=lambda row: row.gates_k))


class Ablation(Entry):
    """The method without one of its parts."""

    method: str
    score: float


class Ablations(Entry):
    """The table of ablations, all on one network, data set and budget."""

    table: int
    network: str
    data: str
    gates_k: float
    rows: tuple[Ablation, ...]


class Speedup(Entry):
    """How many times faster than the plain network private inference is."""

    network: str
    data: str
    gates_k: float
    autorep: float
    deepshare: float


class Latency(Entry):
    """The table of speedups."""

    table: int
    rows: tuple[Speedup, ...]


class Paper(Entry):
    """All tables of results."""

    results: tuple[Results, ...]
    ablations: Ablations
    latency: Latency

    def find(self, network: str, data: str) -> Results | None:
        """The table for a network and a data set, named as in recipes; None if there is none."""
        fitting = (table for table in self.results if table.setup == (network, data))
        return next(fitting, None)

    @property
    def methods(self) -> Sequence[str]:
        """Every method of the tables that compare, each once."""
        return list(dict.fromkeys(row.method for table in self.results for row in table.rows))


@cache
def load() -> Paper:
    """Read the packaged file."""
    file = resources.files("deepshare.study") / "paper.toml"
    content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    return Paper.model_validate(content)
