"""The least loss within a budget, by trying every choice."""

from itertools import product


def brute_force(costs: list[list[int]], losses: list[list[float]], budget: int) -> float:
    return min(
        sum(loss[choice] for loss, choice in zip(losses, choices, strict=True))
        for choices in product(*(range(len(cost)) for cost in costs))
        if sum(cost[choice] for cost, choice in zip(costs, choices, strict=True)) <= budget
    )
