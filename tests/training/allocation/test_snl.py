"""SNL through the one loop: it stops at its count, resumes bit for bit, and its counts divide the budget."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deepshare.errors import BudgetError
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import split_budget
from deepshare.training.api import allocate, fit
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.reporter import EpochLine, Reporter

# A lasso so strong that the masks fall below the threshold within a few epochs.
FAST = {
    "model.arguments.width": 2,
    "data.subset": 128,
    "data.validation": 32,
    "plain.epochs": 1,
    "teacher.epochs": 1,
    "gelu.epochs": 1,
    "switch.epochs": 1,
    "finetune.epochs": 1,
    "budget.allocate": "snl",
    "budget.gates": 120,
    "snl.batch": 32,
    "snl.lasso": 1e-3,
    "snl.grow_from": 0,
    "snl.growth": 3.0,
    "snl.lr": 0.05,
    "snl.threshold": 0.1,
    "snl.max_epochs": 30,
}


def recipe(**overrides: object) -> Recipe:
    return load_recipe("digits", {**FAST, **{key.replace("__", "."): value for key, value in overrides.items()}})


class StoppedError(Exception):
    pass


class StopAfter(Reporter):
    """Interrupts a run after an epoch of SNL."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        if line.phase == "snl" and line.epoch == self.last:
            raise StoppedError


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_stops_at_the_budget_and_records_every_site(tmp_path: Path) -> None:
    counts = allocate(recipe=recipe(), out=tmp_path / "run")
    record = lines(tmp_path / "run" / "snl")
    assert json.loads((tmp_path / "run" / "snl" / "counts.json").read_text()) == counts
    assert 4 < len(record) < 30
    assert all(line["gates"] > 120 for line in record[:-1])
    assert record[-1]["gates"] == sum(counts.values()) <= 120
    assert {name: record[-1][f"gates.{name}"] for name in counts} == counts
    lowest, lasso = float("inf"), 1e-3
    for line in record:
        assert line["lasso"] == pytest.approx(lasso)
        lasso *= 1 if line["gates"] < lowest else 3
        lowest = min(lowest, line["gates"])


class Notes(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_it_says_so_when_it_ends_above_its_target(tmp_path: Path) -> None:
    enough, few = Notes(), Notes()
    allocate(recipe=recipe(snl__gates="99%"), out=tmp_path / "enough", reporter=enough)
    counts = allocate(recipe=recipe(snl__max_epochs=1), out=tmp_path / "few", reporter=few)
    assert enough.notes == []
    (note,) = few.notes
    assert note.startswith(f"snl: ended with {sum(counts.values())} gates, above the 120")


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = allocate(recipe=recipe(), out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        allocate(recipe=recipe(), out=tmp_path / "halves", reporter=StopAfter(2))
    assert not (tmp_path / "halves" / "snl" / "counts.json").exists()
    assert allocate(recipe=recipe(), out=tmp_path / "halves", resume=True) == whole
    one, two = (load_file(tmp_path / name / "snl" / "model.safetensors") for name in ("whole", "halves"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert allocate(recipe=recipe(), out=tmp_path / "halves", resume=True) == whole


@pytest.mark.parametrize("first_site_only", [False, True])
def test_fit_divides_the_budget_by_the_counts(first_site_only: bool, tmp_path: Path) -> None:
    fit(recipe=recipe(budget__first_site_only=first_site_only, budget__gates=160), out=tmp_path / "run")
    counts = json.loads((tmp_path / "run" / "snl" / "counts.json").read_text())
    found = Plan.load(tmp_path / "run" / "plan.json")
    wanted = [
        counts[group.leader.name] if first_site_only else sum(counts[site.name] for site in group.sites)
        for group in found.groups
    ]
    units = [group.leader.positions for group in found.groups]
    caps = [group.leader.channels for group in found.groups]
    assert [group.prototypes for group in found.groups] == split_budget(units, caps, wanted, 160)


def test_it_may_stop_at_a_count_of_its_own_and_starts_from_given_weights(tmp_path: Path) -> None:
    allocate(recipe=recipe(snl__gates="60%"), out=tmp_path / "first")
    given = recipe(snl__gates="60%", plain=None, model__weights=str(tmp_path / "first" / "plain"))
    counts = allocate(recipe=given, out=tmp_path / "second")
    assert 85 < sum(counts.values()) <= 0.6 * 480
    assert not (tmp_path / "second" / "plain").exists()


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="give at least 85"):
        fit(recipe=recipe(budget__gates=84), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
