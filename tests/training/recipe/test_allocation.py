"""The registry of allocations."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from deepshare.errors import BudgetError, RecipeError
from deepshare.methods.base import PhaseView, RecipeView
from deepshare.sharing.sites import Sites
from deepshare.training import api
from deepshare.training.recipe import allocation as allocations
from deepshare.training.recipe.files import Phase, load_recipe
from deepshare.training.recipe.schema import Budget
from tests.training.allocation.shapes import sites_of

PILOT: dict[str, Any] = {"epochs": 1, "batch": 64, "lr": 0.1, "schedule": "none", "weight_decay": 0.0}


@pytest.mark.parametrize("allocate", ["pruning", "sensitivity"])
def test_what_takes_a_pilot_is_told_where_its_weights_come_from(allocate: str) -> None:
    with pytest.raises(BudgetError, match=f"{allocate} is measured in training: .* give its pilot/weights.json here"):
        allocations.find(allocate).read(sites_of("resnet18", 32))


def test_the_schema_knows_every_allocation() -> None:
    for allocate in (*allocations.names(), "counts.json"):
        assert Budget(gates=1, allocate=allocate).allocate == allocate
    with pytest.raises(ValidationError) as caught:
        Budget(gates=1, allocate="others")
    assert set(re.findall('"([^"]+)"', str(caught.value))) == set(allocations.names())


def test_an_allocation_registers_itself_with_its_traits(monkeypatch: pytest.MonkeyPatch) -> None:
    allocations.names()  # imports the shipped ones
    monkeypatch.setattr(allocations._ALLOCATIONS, "_registered", dict(allocations._ALLOCATIONS._registered))

    @allocations.register("halves")
    class Halves(allocations.Allocation):
        needs_plain = needs_pilot = True

        def phases(self, recipe: RecipeView) -> Mapping[str, PhaseView]:
            return {"half": Phase(**{**PILOT, "batch": 7})}

        def read(self, sites: Sites) -> None:
            """The same share everywhere."""

    given = {"budget.allocate": "halves"}
    with pytest.raises(RecipeError, match=r'budget.allocate = "halves" starts from a trained network'):
        load_recipe("digits", {**given, "plain": None})
    with pytest.raises(RecipeError, match=r'\[pilot\] is for budget.allocate = "pruning" or "sensitivity" or "halves"'):
        load_recipe("digits", {f"pilot.{key}": value for key, value in PILOT.items()})
    assert "plain" in load_recipe("digits", given).phases
    assert "plain" not in load_recipe("digits").phases
    with pytest.raises(RecipeError, match=r"half.batch = 7 cannot be shared by 2 processes"):
        api._check_batches(load_recipe("digits", given), 2)
