"""Labels in the chart of score against gates."""

import math

import pytest

from deepshare.study.report.chart import AxisScale, Panel
from deepshare.study.report.frontier import _everything, _meet, _room


def test_names_in_a_chart_do_not_cover_each_other() -> None:
    taken = [(x - 8.0, 92.0, x + 8.0, 108.0) for x in (300.0, 310.0, 320.0, 330.0)]
    for x in (300.0, 310.0, 320.0, 330.0):
        box = _room(x, 100.0, 80.0, taken)
        assert not any(_meet(box, other) for other in taken)
        taken.append(box)
    assert not _meet((0, 0, 1, 1), (1, 0, 2, 1))
    assert math.isclose(_room(100.0, 50.0, 40.0, [])[0], 113.0)


def test_the_words_for_all_relus_cover_no_mark() -> None:
    panel = Panel(AxisScale(100, 20_000, 58, 896, logarithmic=True), AxisScale(0, 100, 230, 34))
    marks = [(x - 8, y - 8, x + 8, y + 8) for x, y in [panel.place((10_000, 5.0)), panel.place((8_000, 20.0))]]
    taken = list(marks)
    words = [one for one in _everything(panel, [9_000, 10_000], taken, []) if one.tag == "text"]
    assert [one.text for one in words] == ["all 9,000 ReLUs", "all 10,000 ReLUs"]
    boxes = taken[len(marks) :]
    assert [float(one.get("y") or 0) for one in words] == pytest.approx([box[3] - 4 for box in boxes], abs=0.01)
    assert not any(_meet(box, mark) for box in boxes for mark in marks)
    assert not _meet(*boxes)
