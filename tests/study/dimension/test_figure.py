import json
from pathlib import Path

import numpy as np
import pytest
import torch

from deepshare import zoo
from deepshare.study.dimension.analysis import measure
from deepshare.study.dimension.figure import draw, save
from deepshare.study.dimension.summary import Dimension


@pytest.fixture(scope="module")
def result() -> Dimension:
    return measure(zoo.resnet18(num_classes=5, width=4, depth=10).eval(), torch.randn(40, 3, 16, 16))


def test_two_panels_name_every_site_and_have_a_box_for_each(result: Dimension) -> None:
    boxes, dots = draw(result, "a title").axes
    labels = [label.get_text() for label in boxes.get_yticklabels()]
    assert [label.split()[0] for label in labels] == [gates.site.name for gates in result.sites]
    assert labels[0].endswith("4\N{MULTIPLICATION SIGN}16\N{MULTIPLICATION SIGN}16")
    assert len(boxes.patches) == 2 * len(result.sites)
    values = [np.asarray(line.get_xdata(), float) for line in dots.lines]
    np.testing.assert_array_equal(values[0], [gates.channels for gates in result.sites])
    np.testing.assert_array_equal(values[1], [gates.leader for gates in result.sites])


def test_a_box_spans_the_quartiles(result: Dimension) -> None:
    boxes = draw(result).axes[0]
    for patch, gates in zip(boxes.patches, result.sites, strict=False):
        extents = patch.get_path().get_extents()
        assert (extents.x0, extents.x1) == pytest.approx((gates.dimension.lower, gates.dimension.upper))


def test_sites_whose_gates_never_change_have_no_box() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 1), torch.nn.ReLU())
    result = measure(model, torch.zeros(10, 1, 3, 3))
    assert len(draw(result).axes[0].patches) == 0


def test_the_files_are_the_same_each_time(result: Dimension, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save(result, tmp_path / name, "deepshare study dimension runs/x", "runs/x")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == ["dimension.json", "dimension.png", "dimension.svg"]
    record = json.loads(contents[0]["dimension.json"])
    assert record["sites"] == result.to_dict()["sites"]
    assert record["command"] == "deepshare study dimension runs/x"


def test_the_figure_says_where_not_all_was_measured() -> None:
    model = zoo.resnet18(num_classes=5, width=4, depth=10).eval()
    figure = draw(measure(model, torch.randn(12, 3, 16, 16), memory=300_000))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0].endswith(" of 256 positions")
    assert not labels[-1].endswith("positions")
    assert "fewer than 10 images for each channel" in figure.get_suptitle()
