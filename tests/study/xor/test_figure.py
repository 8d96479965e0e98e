"""The figure and the record of the XOR study."""

import json
from pathlib import Path

import numpy as np
import pytest

from deepshare.study.xor.experiment import XorResult, XorSettings, run
from deepshare.study.xor.figure import POINTS, draw, save


@pytest.fixture(scope="module")
def result() -> XorResult:
    return run(XorSettings(seeds=3, epochs=10, points=80))


def test_four_panels_say_method_and_success(result: XorResult) -> None:
    figure = draw(result)
    assert [axes.get_title() for axes in figure.axes] == [outcome.method.title for outcome in result.outcomes]
    for axes, outcome in zip(figure.axes, result.outcomes, strict=True):
        assert axes.texts[0].get_text().startswith(f"solved by {outcome.solved} of 3 seeds")
    assert "median" in figure.get_suptitle()


def test_points_have_the_colour_of_their_label(result: XorResult) -> None:
    for axes, outcome in zip(draw(result).axes, result.outcomes, strict=True):
        lines = axes.lines[:2]
        assert tuple(line.get_color() for line in lines) == POINTS
        agree, differ = (np.asarray(line.get_xydata()) for line in lines)
        assert len(agree) + len(differ) == outcome.points.shape[1]
        assert agree.prod(1).min() >= 0
        assert differ.prod(1).max() <= 0


def test_regions_are_the_decisions(result: XorResult) -> None:
    """The upper right corner of the picture is the decision at (1, 1), the lower left one that at (-1, -1)."""
    for axes, outcome in zip(draw(result).axes, result.outcomes, strict=True):
        picture = axes.images[0].get_array()
        assert picture is not None
        corners = outcome.network.forward(outcome.points.new_tensor([[[1.0], [-1.0], [1.0]], [[1.0], [-1.0], [-1.0]]]))
        decided = (corners.logits[:, 0] > 0).tolist()
        assert [bool(picture[-1, -1]), bool(picture[0, 0]), bool(picture[0, -1])] == decided


def test_the_files_are_written_and_the_same_each_time(result: XorResult, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save(result, tmp_path / name, "deepshare study xor --seeds 3")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == ["xor.json", "xor.png", "xor.svg"]
    record = json.loads(contents[0]["xor.json"])
    assert record["command"] == "deepshare study xor --seeds 3"
    assert record["methods"] == result.to_dict()["methods"]
    assert contents[0]["xor.png"].startswith(b"\x89PNG")
    assert b"DeepShare with the GELU phase" in contents[0]["xor.svg"]
