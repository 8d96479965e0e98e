"""Scales, ticks and lines of charts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepshare.study.report.chart import AxisScale, Panel, spread, wide


def test_ticks_are_round_and_inside() -> None:
    assert AxisScale(48, 100, 190, 0).ticks == [50, 60, 70, 80, 90, 100]
    assert AxisScale(0, 100, 64, 0).ticks == [0, 50, 100]
    assert AxisScale(0, 370, 0, 850, spacing=80.0).ticks == [0, 50, 100, 150, 200, 250, 300, 350]
    assert AxisScale(0, 2, 0, 850, spacing=80.0, whole=True).ticks == [0, 1, 2]
    assert AxisScale(0, 2, 0, 850, spacing=80.0).ticks[1] < 1
    assert AxisScale(100, 6000, 0, 850, logarithmic=True).ticks == [100, 200, 500, 1000, 2000, 5000]
    assert AxisScale(1, 1e6, 0, 850, logarithmic=True).ticks == [10.0**power for power in range(7)]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(20, 900))
def test_ticks_are_some_but_not_many(low: float, width: float, length: float) -> None:
    scale = AxisScale(low, low + width, length, 0)
    assert 1 <= len(scale.ticks) <= 3 + 2 * length / scale.spacing
    assert all(-1e-6 * length <= scale.at(tick) <= length * (1 + 1e-6) for tick in scale.ticks)


def test_places() -> None:
    panel = Panel(AxisScale(1, 100, 10, 30, logarithmic=True), AxisScale(0, 50, 200, 100))
    assert panel.place((10, 25)) == pytest.approx((20, 150))
    assert spread([3.0, 3.0], least=4) == (1.0, 5.0)
    assert spread([0.0, 100.0], least=4) == (-8.0, 108.0)
    assert wide([0, 2, 8], 2) == (1, 16)


def test_one_epoch_is_a_dot_and_several_a_line() -> None:
    panel = Panel(AxisScale(0, 1, 0, 10), AxisScale(0, 1, 10, 0))
    assert panel.line([(1, 1)], "x").tag == "circle"
    assert panel.line([(0, 0), (1, 1)], "x").get("d") == "M0.0 10.0L10.0 0.0"
