"""What the report reads off runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepshare import zoo
from deepshare.data import load as load_data
from deepshare.errors import CheckpointError, DataError
from deepshare.private.cost import Cost, Layer, predict
from deepshare.private.runtime.engine import Part, engine_names
from deepshare.study import report
from deepshare.study.report import Run
from deepshare.study.report.budget import spending
from deepshare.study.report.cost import ENGINE, Predicted, keep_measured, sent
from deepshare.study.report.run import OWN_DATA, OWN_MODEL
from deepshare.study.samples import Samples
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.evaluate import evaluate
from tests.training.conftest import small_recipe


@pytest.fixture(scope="module")
def shared(tiny_run: Path) -> Run:
    return report.read([tiny_run])[0]


@pytest.fixture(scope="module")
def plain(plain_run: Path) -> Run:
    return report.read([plain_run])[0]


def test_figures_are_those_of_the_run(shared: Run, tiny_run: Path) -> None:
    result = json.loads((tiny_run / "result.json").read_text())
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    assert (shared.gates, shared.neurons) == (result["gates"], result["neurons"])
    assert shared.score == result["test"]["last"]["accuracy"] == evaluate(load(tiny_run), "digits").accuracy
    assert shared.validation == lines[-1]["val_accuracy"]
    assert [strand.network for strand in shared.strands] == ["teacher", ""]
    assert list(shared.strands[-1].lines) == lines
    assert shared.epochs == 1 + 2 + 2 + 2


def test_the_numbers_survive_json(shared: Run) -> None:
    told = json.loads(json.dumps(shared.to_dict()))
    assert (told["gates"], told["score"], told["tested"]) == (shared.gates, shared.score, True)
    assert told["recipe"]["budget"]["gates"] == "20%"
    assert [len(curve["epochs"]) for curve in told["curves"]] == [1, 6]
    assert sum(group["prototypes"] for group in told["plan"]["groups"]) > 0
    assert set(told["predicted"]["costs"]) == set(engine_names())


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


def test_groups_spend_the_gates_of_the_plan(shared: Run) -> None:
    assert shared.plan is not None
    spent = spending(shared)
    assert [one.gates for one in spent] == [group.gates for group in shared.plan.groups]
    assert (sum(one.gates for one in spent), sum(one.neurons for one in spent)) == (shared.gates, shared.neurons)


def test_a_plain_network_spends_all_its_relus(plain: Run) -> None:
    assert plain.plan is None
    assert plain.gates == plain.neurons
    spent = spending(plain)
    assert len(spent) == 8
    assert all(one.gates == one.neurons for one in spent)
    assert sum(one.gates for one in spent) == plain.gates
    assert isinstance(plain.predicted, Predicted)
    assert plain.predicted.plain == {}


def test_samples_are_test_images_with_the_networks_own_probabilities(shared: Run, tiny_run: Path) -> None:
    assert isinstance(shared.samples, Samples)
    test = load_data("digits").test
    network = load(tiny_run)
    for sample in (*shared.samples.first, *shared.samples.mistakes):
        raw = test.images[sample.number]
        assert torch.equal(sample.image, raw)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (test.mean, test.std))
        with torch.no_grad():
            likely = network(((raw / 255.0 - mean) / std)[None]).double().softmax(1)[0]
        assert [value for _, value in sample.guesses] == pytest.approx(likely.topk(3).values.tolist(), rel=1e-4)
        assert sample.truth == test.classes[int(test.labels[sample.number])]
        assert sample.right == (test.classes[int(likely.argmax())] == sample.truth)
    assert [sample.number for sample in shared.samples.first] == list(range(12))
    assert not any(sample.right for sample in shared.samples.mistakes)
    sure = [sample.guesses[0][1] for sample in shared.samples.mistakes]
    assert sure == sorted(sure, reverse=True)


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
    with pytest.raises(CheckpointError, match=r"mine\.json is no measured cost"):
        report.read([run])


def test_data_that_is_missing_is_said_or_refused(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace('name = "digits"\nimage', 'name = "cifar100"\nimage'))
    samples = report.read([run])[0].samples
    assert isinstance(samples, str)
    assert "cifar100" in samples and "--data-dir" in samples
    with pytest.raises(DataError, match="cifar-100-python"):
        report.read([run], tmp_path)


def test_a_model_and_data_of_the_users_own(tmp_path: Path) -> None:
    recipe = small_recipe(gelu__epochs=1, switch__epochs=1, finetune__epochs=1)
    images = load_data("digits").train
    pairs = [(images.images[place] / 255.0, int(images.labels[place])) for place in range(128)]
    model = zoo.build("resnet18", num_classes=10, depth=10, width=8, channels=1)
    fit(model, recipe=recipe, out=tmp_path / "run", data=(pairs_set(pairs), pairs_set(pairs[:64])))
    run = report.read([tmp_path / "run"])[0]
    assert (run.affine, run.predicted, run.samples) == (OWN_MODEL, OWN_MODEL, OWN_MODEL)
    assert run.test is None
    assert run.score == run.validation
    assert report.run.find_images(tmp_path / "run", None) == OWN_DATA
    page = report.page([run])
    assert "of the validation images right" in page
    assert OWN_MODEL in page


def pairs_set(pairs: list[tuple[torch.Tensor, int]]) -> torch.utils.data.Dataset[tuple[torch.Tensor, int]]:
    class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return pairs[index]

    return Pairs()


def test_folders_are_checked_before_anything_is_read(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run to report on"):
        report.check([])
    with pytest.raises(CheckpointError, match="there is no folder"):
        report.check([tiny_run, tmp_path / "nowhere"])
    with pytest.raises(CheckpointError, match="no run folder"):
        report.check([tmp_path])
    with pytest.raises(CheckpointError, match="part of a run"):
        report.check([tiny_run / "teacher"])
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="its weights are not there"):
        report.check([run])


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "environment.json"])
def test_a_damaged_file_is_named(tiny_run: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / name).write_text("{" if name.endswith("json") else "")
    with pytest.raises(CheckpointError, match=f"{name} is missing or damaged"):
        report.read([run])


def test_names_are_short_unless_two_are_alike(shared: Run, plain: Run) -> None:
    one, other = replace(shared, name="runs/a"), replace(plain, name="runs/b")
    assert report.run.short_names([one, other]) == ["a", "b"]
    assert report.run.short_names([one, replace(other, name="more/a")]) == ["runs/a", "more/a"]
