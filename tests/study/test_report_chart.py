import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepshare.study.report.chart import Panel, Scale, spread, wide
from deepshare.study.report.frontier import _everything, _meet, _room
from deepshare.study.report.markup import grow, node, to_text


def test_ticks_are_round_and_inside() -> None:
    assert Scale(48, 100, 190, 0).ticks == [50, 60, 70, 80, 90, 100]
    assert Scale(0, 100, 64, 0).ticks == [0, 50, 100]
    assert Scale(0, 370, 0, 850, spacing=80.0).ticks == [0, 50, 100, 150, 200, 250, 300, 350]
    assert Scale(0, 2, 0, 850, spacing=80.0, whole=True).ticks == [0, 1, 2]
    assert Scale(0, 2, 0, 850, spacing=80.0).ticks[1] < 1
    assert Scale(100, 6000, 0, 850, logarithmic=True).ticks == [100, 200, 500, 1000, 2000, 5000]
    assert Scale(1, 1e6, 0, 850, logarithmic=True).ticks == [10.0**power for power in range(7)]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(20, 900))
def test_ticks_are_some_but_not_many(low: float, width: float, length: float) -> None:
    scale = Scale(low, low + width, length, 0)
    assert 1 <= len(scale.ticks) <= 3 + 2 * length / scale.spacing
    assert all(-1e-6 * length <= scale.at(tick) <= length * (1 + 1e-6) for tick in scale.ticks)


def test_places() -> None:
    panel = Panel(Scale(1, 100, 10, 30, logarithmic=True), Scale(0, 50, 200, 100))
    assert panel.place((10, 25)) == pytest.approx((20, 150))
    assert spread([3.0, 3.0], least=4) == (1.0, 5.0)
    assert spread([0.0, 100.0], least=4) == (-8.0, 108.0)
    assert wide([0, 2, 8], 2) == (1, 16)


def test_one_epoch_is_a_dot_and_several_a_line() -> None:
    panel = Panel(Scale(0, 1, 0, 10), Scale(0, 1, 10, 0))
    assert panel.line([(1, 1)], "x").tag == "circle"
    assert panel.line([(0, 0), (1, 1)], "x").get("d") == "M0.0 10.0L10.0 0.0"


def test_text_and_attributes_are_escaped() -> None:
    made = grow(node("p", "a<b", title='"<&'), node("br"), "c&d", None)
    assert to_text(made) == '<p title="&quot;<&amp;">a&lt;b<br>c&amp;d</p>'
    assert to_text(node("i", class_=None, x=0.3333, stroke_width=2.0)) == '<i x="0.33" stroke-width="2"></i>'


def test_names_in_a_chart_do_not_cover_each_other() -> None:
    taken = [(x - 8.0, 92.0, x + 8.0, 108.0) for x in (300.0, 310.0, 320.0, 330.0)]
    for x in (300.0, 310.0, 320.0, 330.0):
        box = _room(x, 100.0, 80.0, taken)
        assert not any(_meet(box, other) for other in taken)
        taken.append(box)
    assert not _meet((0, 0, 1, 1), (1, 0, 2, 1))
    assert math.isclose(_room(100.0, 50.0, 40.0, [])[0], 113.0)


def test_the_words_for_all_relus_cover_no_mark() -> None:
    panel = Panel(Scale(100, 20_000, 58, 896, logarithmic=True), Scale(0, 100, 230, 34))
    marks = [(x - 8, y - 8, x + 8, y + 8) for x, y in [panel.place((10_000, 5.0)), panel.place((8_000, 20.0))]]
    taken = list(marks)
    words = [one for one in _everything(panel, [9_000, 10_000], taken, []) if one.tag == "text"]
    assert [one.text for one in words] == ["all 9,000 ReLUs", "all 10,000 ReLUs"]
    boxes = taken[len(marks) :]
    assert [float(one.get("y") or 0) for one in words] == pytest.approx([box[3] - 4 for box in boxes], abs=0.01)
    assert not any(_meet(box, mark) for box in boxes for mark in marks)
    assert not _meet(*boxes)
