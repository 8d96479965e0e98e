"""The registry of allocations."""

import pytest

from deepshare.errors import BudgetError
from deepshare.training.allocation import weights_of
from tests.training.allocation.shapes import sites_of


@pytest.mark.parametrize("allocate", ["pruning", "sensitivity"])
def test_what_takes_a_pilot_is_told_where_its_weights_come_from(allocate: str) -> None:
    with pytest.raises(BudgetError, match=f"{allocate} is measured in training: .* give its pilot/weights.json here"):
        weights_of(allocate, sites_of("resnet18", 32))
