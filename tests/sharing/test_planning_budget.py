"""A budget is divided in whole channels, in proportion, and used as far as possible."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepshare.errors import BudgetError
from deepshare.sharing.planning import parse_budget, split_budget

RESNET = {"units": [1024, 256, 64, 16], "caps": [64, 128, 256, 512]}
TINY = {"units": [4096, 1024, 256, 64], "caps": [64, 128, 256, 512]}
WRN = {"units": [1024, 1024, 256, 64], "caps": [16, 128, 256, 512]}


def spent(units: list[int], counts: list[int]) -> int:
    return sum(unit * count for unit, count in zip(units, counts, strict=True))


@pytest.mark.parametrize(
    ("network", "budget", "exact"),
    [
        (RESNET, 6_000, 6_000),
        (RESNET, 12_900, 12_896),
        (RESNET, 49_900, 49_888),
        (RESNET, 1_360, 1_360),
        (WRN, 150_000, 149_952),
        (WRN, 120_000, 120_000),
        (WRN, 60_000, 59_968),
        (TINY, 190_000, 189_952),
        (TINY, 55_000, 54_976),
        (TINY, 30_000, 29_952),
    ],
)
def test_the_paper_budgets_reach_their_feasible_sums(network: dict[str, list[int]], budget: int, exact: int) -> None:
    uniform = [float(unit * cap) for unit, cap in zip(network["units"], network["caps"], strict=True)]
    assert spent(network["units"], split_budget(**network, weights=uniform, budget=budget)) == exact


def test_the_error_names_the_minimum() -> None:
    with pytest.raises(BudgetError, match="1,360"):
        split_budget(**RESNET, weights=[1, 1, 1, 1], budget=1_000)


def test_shares_follow_the_weights() -> None:
    assert split_budget(units=[10, 10, 10], caps=[100, 100, 100], weights=[1, 2, 5], budget=800) == [10, 20, 50]


def test_what_a_capped_group_leaves_goes_to_the_others_in_proportion() -> None:
    assert split_budget(units=[1, 1, 1], caps=[10, 100, 100], weights=[8, 1, 1], budget=50) == [10, 20, 20]


def test_a_group_without_weight_keeps_one_channel() -> None:
    assert split_budget(units=[4, 1], caps=[8, 100], weights=[0, 1], budget=64) == [1, 60]


def test_a_group_without_weight_gets_what_nobody_else_can_take() -> None:
    assert split_budget(units=[4, 1], caps=[8, 10], weights=[0, 1], budget=42) == [8, 10]


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_impossible_weights_are_refused(weight: float) -> None:
    with pytest.raises(BudgetError, match="weight"):
        split_budget(units=[1, 1], caps=[5, 5], weights=[1.0, weight], budget=6)


groups = st.lists(
    st.tuples(st.integers(1, 4096), st.integers(1, 64), st.floats(0, 1e6, allow_subnormal=False)),
    min_size=1,
    max_size=8,
)


@given(groups, st.floats(0, 1.2))
def test_whole_channels_within_bounds_and_nothing_left_to_spend(
    drawn: list[tuple[int, int, float]], level: float
) -> None:
    units, caps, weights = (list(column) for column in zip(*drawn, strict=True))
    minimum, maximum = sum(units), spent(units, caps)
    budget = math.floor(minimum + level * (maximum - minimum))
    counts = split_budget(units, caps, weights, budget)
    assert counts == split_budget(units, caps, weights, budget)
    assert all(1 <= count <= cap for count, cap in zip(counts, caps, strict=True))
    left = budget - spent(units, counts)
    free = [unit for unit, count, cap in zip(units, counts, caps, strict=True) if count < cap]
    assert left >= 0
    assert not free or left < min(free)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 400))
def test_equal_weights_and_units_differ_by_one_channel_at_most(caps: list[int], extra: int) -> None:
    counts = split_budget([1] * len(caps), caps, [1.0] * len(caps), len(caps) + extra)
    open_counts = [count for count, cap in zip(counts, caps, strict=True) if count < cap]
    assert not open_counts or max(open_counts) - min(open_counts) <= 1


@pytest.mark.parametrize(
    ("given_", "gates"),
    [(6000, 6000), ("6000", 6000), ("6,000", 6000), ("1.25%", 1536), ("100%", 122_880), (" 10 %", 12_288)],
)
def test_a_budget_is_a_count_or_a_share(given_: int | str, gates: int) -> None:
    assert parse_budget(given_, 122_880) == gates


def test_a_number_of_numpy_is_a_count() -> None:
    assert parse_budget(np.int64(6000), 122_880) == 6000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given_",
    [0, -5, "0%", "-3%", "x", "nan", "nan%", "inf%", "", "1e400%", "1,2%", 1.5, True, None, 122_881, "101%"],
)
def test_a_budget_that_is_none(given_: object) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_budget(given_, 122_880)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
