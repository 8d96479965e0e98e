"""The registry of allocations."""

import re

import pytest
from pydantic import ValidationError

from deepshare.errors import BudgetError
from deepshare.training.allocation import ALLOCATIONS
from deepshare.training.recipe.schema import Budget
from tests.training.allocation.shapes import sites_of


@pytest.mark.parametrize("allocate", ["pruning", "sensitivity"])
def test_what_takes_a_pilot_is_told_where_its_weights_come_from(allocate: str) -> None:
    with pytest.raises(BudgetError, match=f"{allocate} is measured in training: .* give its pilot/weights.json here"):
        ALLOCATIONS[allocate].read(allocate, sites_of("resnet18", 32))


def test_the_schema_knows_every_allocation() -> None:
    for allocate in (*ALLOCATIONS, "counts.json"):
        assert Budget(gates=1, allocate=allocate).allocate == allocate
    with pytest.raises(ValidationError) as caught:
        Budget(gates=1, allocate="others")
    assert set(re.findall('"([^"]+)"', str(caught.value))) == set(ALLOCATIONS)
