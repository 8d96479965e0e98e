"""The multiple-choice knapsack: one choice for each item, with the least loss within a budget; solved exactly."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deepshare.errors import BudgetError

MAX_COLUMNS = 2**18  # a larger budget is counted in units, and costs are rounded up to them


def choose(costs: Sequence[Sequence[int]], losses: Sequence[Sequence[float]], budget: int) -> list[int]:
    """Choose by dynamic programming over the remaining budget.

    Args:
        costs: Costs of the choices of each item, whole numbers of 0 or more.
        losses: Losses of the choices of each item.
        budget: Upper bound of the total cost; exact up to 262,144, above it costs are rounded up slightly.

    Returns:
        Index of the choice for each item.

    Raises:
        BudgetError: The cheapest choices are above the budget.

    >>> choose(costs=[[4, 1, 0], [4, 2, 0]], losses=[[0.0, 2.0, 5.0], [0.0, 1.0, 9.0]], budget=6)
    [0, 1]
    """
    unit = -(-budget // MAX_COLUMNS)
    columns = budget // unit + 1
    best = np.zeros(columns)  # the least loss so far by what has been spent at most
    chosen: list[tuple[npt.NDArray[np.uint8], list[int]]] = []
    for prices, loss in zip(costs, losses, strict=True):
        options = _worthwhile([-(-price // unit) for price in prices], loss)
        totals = np.full((len(options), columns), np.inf)
        for row, (price, choice) in zip(totals, options, strict=True):
            if price < columns:
                row[price:] = best[: columns - price] + loss[choice]
        pick = totals.argmin(0).astype(np.uint8)
        best = totals[pick, np.arange(columns)]
        chosen.append((pick, [choice for _, choice in options]))
    if not np.isfinite(best[-1]):
        least = sum(map(min, costs))
        raise BudgetError(f"the cheapest choices cost {least:,} and the budget is {budget:,}: give more")
    return _walk_back(costs, chosen, unit)


def _worthwhile(prices: Sequence[int], losses: Sequence[float]) -> list[tuple[int, int]]:
    """Return price and index of the choices that no cheaper one beats, from the cheapest."""
    kept: list[tuple[int, int]] = []
    for choice in sorted(range(len(prices)), key=lambda index: (prices[index], losses[index])):
        if not kept or losses[choice] < losses[kept[-1][1]]:
            kept.append((prices[choice], choice))
    return kept


def _walk_back(
    costs: Sequence[Sequence[int]], chosen: Sequence[tuple[npt.NDArray[np.uint8], list[int]]], unit: int
) -> list[int]:
    column, result = -1, []
    for prices, (pick, choices) in zip(reversed(costs), reversed(chosen), strict=True):
        choice = choices[int(pick[column])]
        column -= -(-prices[choice] // unit)
        result.append(choice)
    return result[::-1]
