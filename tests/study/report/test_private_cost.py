"""Predicted and measured cost of private inference."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError
from deepshare.private.cost import Cost, Layer, predict
from deepshare.private.runtime.outcome import Part
from deepshare.study import report
from deepshare.study.report import Run
from deepshare.study.report.markup import to_text
from deepshare.study.report.private_cost import ENGINE, Predicted, cost_section, keep_measured, sent
from deepshare.training.build import load


def test_costs_are_those_that_are_predicted(shared: Run, tiny_run: Path) -> None:
    assert isinstance(shared.predicted, Predicted)
    cost = shared.predicted.costs[ENGINE]
    assert isinstance(cost, Cost)
    expected = predict(load(tiny_run), (1, 8, 8), ENGINE)
    assert (cost.online, cost.offline) == (expected.online, expected.offline)
    assert cost.online.comparisons == shared.gates
    assert sum(shared.predicted.offline) == sent(cost.offline)
    assert len(shared.predicted.offline) == len(cost.layers)
    full = shared.predicted.plain[ENGINE]
    assert isinstance(full, Cost)
    assert full.online.comparisons == shared.neurons


def test_the_offline_part_of_a_layer_is_its_own(shared: Run) -> None:
    assert isinstance(shared.predicted, Predicted)
    cost = shared.predicted.costs[ENGINE]
    assert isinstance(cost, Cost)
    parts = {layer.name: part for layer, part in zip(cost.layers, shared.predicted.offline, strict=True)}
    classes, word = 10, 8
    assert parts["fc"] == classes * word
    assert parts["input"] == 0
    assert parts["layer1.0.act1"] > parts["layer1.0.act2"]  # the leader compares, the follower does not


def test_only_engines_that_open_every_activation_are_said_to_save_nothing_online(shared: Run) -> None:
    assert isinstance(shared.predicted, Predicted)
    cost = Cost(ENGINE, 1, (Layer("act", "SharedActivation", Part(server_bytes=100)),), Part(dealer_bytes=10))
    more = replace(cost, offline=Part(dealer_bytes=2_000))
    for engine, plain, said in (
        ("gateshare", more, ["With gateshare fewer gates", "10 B instead of 2,000 B"]),
        ("gateshare-2pc", more, ["With gateshare-2pc fewer gates"]),
        ("gateshare", cost, []),
        ("spu-cheetah", more, []),
        ("spu-cheetah", cost, []),
    ):
        costs = {**shared.predicted.costs, engine: cost}
        others = dict.fromkeys(shared.predicted.plain, "refused")
        found = replace(shared.predicted, costs=costs, plain={**others, engine: plain})
        text = to_text(cost_section(found, {}, alone=True))
        assert [words for words in said if words not in text] == [] and ("hardly reduce" in text) == bool(said)


def test_what_was_measured_is_read_back(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    layers = (Layer("fc", "Linear", Part(0.5, 10, 20, 0, 3, 7, 2)),)
    cost = Cost("crypten", 4, layers, Part(dealer_bytes=30), Part(1.5), 2.25, 0.001)
    assert keep_measured(run, cost) == run / "private" / "crypten.json"
    assert report.read([run])[0].measured == {"crypten": cost}


@pytest.mark.parametrize("content", ["", "[]", '{"cost": {"engine": "crypten"}}'])
def test_a_damaged_measurement_is_named(tiny_run: Path, tmp_path: Path, content: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / "private").mkdir()
    (run / "private" / "mine.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"mine\.json is not a measured cost"):
        report.read([run])
