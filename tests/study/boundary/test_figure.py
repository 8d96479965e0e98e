import json
from pathlib import Path

import numpy as np
import pytest

from deepshare.study.boundary.classification import TELLING_POINTS, BoundaryKind, classify
from deepshare.study.boundary.figure import EXAMPLES, TITLES, accuracy, as_table, draw, save


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_example_is_of_its_kind(kind: BoundaryKind) -> None:
    assert classify(EXAMPLES[kind]).kind == kind


def test_a_half_plane_above_zero_is_right_on_half_of_the_square() -> None:
    assert accuracy(EXAMPLES["half-plane"]) == pytest.approx(0.5, abs=1e-3)
    assert all(accuracy(network) < 5 / 6 for network in EXAMPLES.values())


def test_the_strokes_of_every_panel_are_zeros_of_its_network() -> None:
    for axes, (kind, network) in zip(draw().axes, EXAMPLES.items(), strict=True):
        assert axes.get_title() == TITLES[kind]
        *strokes, gate = axes.lines
        assert len(strokes) == {"two-piece line": 2, "line": 1, "parallel lines": 2, "half-plane": 0}[kind]
        for stroke in strokes:
            begin, end = np.asarray(stroke.get_xydata())
            assert all(abs(network(tuple(begin + share * (end - begin)))) < 1e-9 for share in (0, 0.3, 1))
            assert max(np.abs(begin).max(), np.abs(end).max()) > 1
        assert all(abs(network.gate((x1, x2))) < 1e-9 for x1, x2 in np.asarray(gate.get_xydata()))


def test_the_files(tmp_path: Path) -> None:
    save(tmp_path, "deepshare study boundaries")
    assert {path.name for path in tmp_path.iterdir()} == {"boundaries.json", "boundaries.svg", "boundaries.png"}
    networks = json.loads((tmp_path / "boundaries.json").read_text())["networks"]
    assert [network["boundary"] for network in networks.values()] == list(EXAMPLES)
    assert networks["parallel lines"]["lines"] == [[1.0, 0.5, 0.5], [1.0, 0.5, -0.5]]
    telling = [[float(x) for x in point] for point in TELLING_POINTS]
    assert all(network["missed"] and all(x in telling for x in network["missed"]) for network in networks.values())
    assert as_table().count("\n") == 5
