import json
from pathlib import Path

import numpy as np
import pytest

from deepshare.study.drawing import round_ticks
from deepshare.study.published import paper
from deepshare.study.published.figure import RUN_HERE, as_table, draw, panels, save

FINISHED = {
    "recipe": "cifar100-resnet18-6k",
    "overrides": {},
    "seed": 0,
    "score": "accuracy",
    "test": 75.25,
    "validation": 75.0,
    "gates": 6000,
    "neurons": 491_520,
    "epochs": {"gelu": 1},
    "seconds": 1.0,
    "environment": {"cpu": "a processor"},
    "command": "deepshare train",
    "date": "2026-01-01",
}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A run of the paper's network, one of the same name but another width, and one on fewer images."""
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "same.json").write_text(json.dumps(FINISHED))
    elsewhere = {"overrides": {"data.subset": 256}, "test": 20.0}
    (folder / "subset.json").write_text(json.dumps({**FINISHED, **elsewhere}))
    (folder / "narrow.json").write_text(json.dumps({**FINISHED, "neurons": 122_880, "test": 40.0}))
    return folder


def test_every_row_of_the_tables_is_a_point() -> None:
    found = panels()
    figure = draw(found)
    assert len(figure.axes) == len(paper.load().results) == 4
    for axes, results in zip(figure.axes, paper.load().results, strict=True):
        drawn = {(int(x), y) for line in axes.lines[1:] for x, y in np.asarray(line.get_xydata())}
        rows = [row for row in results.rows if row.method != paper.BASELINE]
        assert {(row.gates, row.score) for row in (*rows, *paper.load().later_than(results))} == drawn
        assert axes.lines[0].get_ydata()[0] == results.baseline.score  # type: ignore[index]
        left, right = axes.get_xlim()
        assert all(left < gates < right for gates, _ in drawn)


def test_a_run_stands_beside_the_table_of_its_network_alone(records: Path) -> None:
    found = panels(records)
    assert [[run.test for run in panel.ours] for panel in found] == [[75.25], [], [], []]
    figure = draw(found)
    assert np.asarray(figure.axes[0].lines[-1].get_xydata()).tolist() == [[6000, 75.25]]
    assert RUN_HERE in [text.get_text() for text in figure.legends[0].get_texts()]
    assert RUN_HERE not in [text.get_text() for text in draw(panels()).legends[0].get_texts()]
    assert "run with this code: cifar100-resnet18-6k" in as_table(found)


def test_what_the_paper_does_not_have_is_marked() -> None:
    lines = [line for line in as_table(panels()).splitlines() if "ReLUPruner" in line or "PILLAR" in line]
    assert all("published: " in line for line in lines)
    figures = {(row.method, row.gates, row.score) for row in paper.load().later}
    assert {("ReLUPruner", 50_000, 77.9), ("ReLUPruner", 12_900, 68.28), ("ReLUPruner", 30_000, 56.13)} < figures
    assert len(lines) == len(figures) == 4


def test_some_of_the_tables() -> None:
    figure = draw(panels()[2:3])
    drawn, empty = figure.axes
    assert drawn.get_title() == "ResNet-18, Tiny-ImageNet (table 3)"
    assert not empty.axison
    assert "CryptoNAS (own network)" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_files(tmp_path: Path, records: Path) -> None:
    save(panels(records), tmp_path, "deepshare study published")
    rows = json.loads((tmp_path / "published.json").read_text())["rows"]
    assert len(rows) == sum(len(results.rows) for results in paper.load().results) + 1 + len(paper.load().later)
    last = {"network": "ResNet-18", "data": "CIFAR-100", "method": f"{RUN_HERE}: cifar100-resnet18-6k"}
    assert {**last, "gates": 6000, "score": 75.25, "from": "2026-01-01"} in rows
    before = (tmp_path / "published.svg").read_bytes()
    save(panels(records), tmp_path, "deepshare study published")
    assert (tmp_path / "published.svg").read_bytes() == before


@pytest.mark.parametrize("counts", [[1], [7], [999, 1001], [50_000, 50_000], [2_556_000, 2_558_000]])
def test_ticks_are_round_and_span_all_counts(counts: list[int]) -> None:
    ticks = round_ticks(counts)
    assert ticks[0] <= min(counts) <= max(counts) <= ticks[-1]
    assert all(str(tick).rstrip("0") in {"1", "2", "5"} for tick in ticks)
