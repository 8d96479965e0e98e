"""The multiple-choice knapsack against brute force."""

import numpy as np
import pytest

from deepshare.errors import BudgetError
from deepshare.methods import knapsack
from tests.methods.brute_force import brute_force


@pytest.mark.parametrize("seed", range(30))
def test_the_knapsack_is_as_good_as_brute_force(seed: int) -> None:
    chance = np.random.default_rng(seed)
    items = int(chance.integers(1, 7))
    costs = [[0, *chance.integers(0, 12, int(chance.integers(1, 5))).tolist()] for _ in range(items)]
    losses = [chance.random(len(cost)).round(2).tolist() for cost in costs]
    budget = int(chance.integers(1, 30))
    chosen = knapsack.choose(costs, losses, budget)
    assert sum(cost[choice] for cost, choice in zip(costs, chosen, strict=True)) <= budget
    found = sum(loss[choice] for loss, choice in zip(losses, chosen, strict=True))
    assert found == pytest.approx(brute_force(costs, losses, budget))


def test_a_large_budget_is_kept_though_counted_in_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "MAX_COLUMNS", 16)
    costs, losses = [[100, 33, 0]] * 5, [[0.0, 1.0, 4.0]] * 5
    chosen = knapsack.choose(costs, losses, 300)
    spent = sum(costs[0][choice] for choice in chosen)
    assert 200 < spent <= 300


def test_a_budget_below_the_cheapest_choices_is_refused() -> None:
    with pytest.raises(BudgetError, match="cheapest choices cost 5 and the budget is 4"):
        knapsack.choose([[2, 3], [3, 4]], [[1.0, 0.0], [1.0, 0.0]], 4)
