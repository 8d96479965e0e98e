"""A budget divided by pruning, from the recipe to the finished network: exact, and resumed bit for bit."""

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import BudgetError, RecipeError
from deepshare.methods.senet_pruning import layer_weights
from deepshare.sharing.convert import count_gates
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.api import fit
from deepshare.training.build import load, make_plan, plain_network
from deepshare.training.catalog import record
from deepshare.training.pipeline import check_method
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.reporter import EpochLine, Reporter
from tests.training.small_runs import StopAfter, StoppedError

SIZE = (1, 8, 8)
BUDGET = 192
PHASE = {"epochs": 2, "batch": 32, "lr": 0.02, "schedule": "none", "weight_decay": 5e-4}
SMALL = {
    "model.arguments": {"width": 4, "channels": 1, "depth": 10},  # which has no densities of SENet's
    "data.subset": 96,
    "data.validation": 32,
    "plain.epochs": 1,
    "distillation.teacher": "plain",
    "budget": {"gates": BUDGET, "allocate": "pruning"},
    "pilot": PHASE,
    "finetune": {**PHASE, "epochs": 1},
}
METHODS: dict[str, dict[str, object]] = {
    "senet": {"method": {"name": "senet", "initial": "plain"}, "search": {**PHASE, "epochs": 1}},
    "deepshare": {"method": {"name": "deepshare"}, "gelu": PHASE, "switch": PHASE},
    "without gelu": {"method": {"name": "deepshare", "initial": "plain"}},
    "trimmed": {"method": {"name": "trimmed", "affine": False}, "budget.layer_sharing": False},
}


def recipe(name: str = "senet", /, **overrides: object) -> Recipe:
    return load_recipe("digits-plain", {**SMALL, **METHODS[name], **overrides})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def found(folder: Path) -> dict[str, float]:
    return dict(json.loads((folder / "pilot" / "weights.json").read_text()))


@pytest.fixture(scope="module", params=METHODS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("run") / "run"
    fit(recipe=recipe(request.param), out=folder)
    return request.param, folder


def test_the_gates_are_within_the_budget_and_divided_as_the_pilot_found(finished: tuple[str, Path]) -> None:
    name, folder = finished
    network, weights = load(folder), found(folder)
    gates = count_gates(network, SIZE)
    assert gates == json.loads((folder / "result.json").read_text())["gates"] <= BUDGET
    assert all(0 < weight < 1 for weight in weights.values())
    if name == "senet":
        sites = find_sites(plain_network(recipe(name), "shared"), SIZE)
        assert gates == BUDGET
        counts = {site.name: int(network.get_buffer(f"{site.name}.mask").sum()) for site in sites}
        shares = {site.name: BUDGET * weights[site.name] / sum(weights.values()) for site in sites}
        full = [site.name for site in sites if shares[site.name] > site.neurons]
        assert full == []  # so that shares are proportional, but for rounding
        assert all(abs(counts[name] - shares[name]) <= 1 for name in counts)
    else:
        wanted = make_plan(recipe(name), plain_network(recipe(name), "shared"), SIZE, weights)
        made = Plan.load(folder / "plan.json")
        assert [group.prototypes for group in made.groups] == [group.prototypes for group in wanted.groups]
        equal = make_plan(recipe(name), plain_network(recipe(name), "shared"), SIZE, None)
        assert [group.prototypes for group in made.groups] != [group.prototypes for group in equal.groups]


def test_the_pilot_is_a_plain_network_with_a_tenth_of_its_weights(finished: tuple[str, Path]) -> None:
    _, folder = finished
    pilot = load(folder / "pilot")
    weights = layer_weights(pilot)
    total = sum(weight.numel() for weight in weights.values())
    assert sum(int(weight.count_nonzero()) for weight in weights.values()) == total // 10
    assert [line["density"] for line in lines(folder / "pilot")] == [pytest.approx(total // 10 / total)] * 2
    first = weights["layer1.0.conv1"]
    assert found(folder)["layer1.0.act1"] == pytest.approx(1 - int(first.count_nonzero()) / first.numel())
    assert record(folder).epochs["pilot"] == 2
    # What is trained then does not go on with the pilot, which has lost nine tenths of its weights.
    whole = layer_weights(load(folder))
    assert sum(int(weight.count_nonzero()) for weight in whole.values()) > 0.99 * sum(map(torch.numel, whole.values()))


def test_the_network_is_rebuilt_from_the_folder_alone(finished: tuple[str, Path]) -> None:
    name, folder = finished
    images = torch.randn(4, *SIZE)
    assert torch.equal(load(folder)(images), fit(recipe=recipe(name), out=folder, resume=True)(images))


@pytest.mark.parametrize("finished", ["senet", "deepshare"], indirect=True)
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, whole = finished
    out, replace = tmp_path / "run", os.replace

    def failing(source: str, target: Path) -> None:
        if Path(target).name == "weights.json":
            raise StoppedError
        replace(source, target)

    for stop in (1, 2):
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=out, resume=True, reporter=StopAfter("pilot", stop))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=out, resume=True)
    with pytest.raises(StoppedError):
        fit(recipe=recipe(name), out=out, resume=True, reporter=StopAfter("finetune", 1))
    fit(recipe=recipe(name), out=out, resume=True)
    assert_same(out, whole)


def assert_same(folder: Path, expected: Path) -> None:
    files = ("model.safetensors", "best.safetensors", "pilot/model.safetensors", "pilot/weights.json")
    for file in files:
        assert (folder / file).read_bytes() == (expected / file).read_bytes(), file
    assert not (folder / "pilot" / "state.pt").exists()


class KillAfter(Reporter):
    """Ends the process after the first epoch of the pilot, as `kill -9` does."""

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        if line.phase == "pilot":
            os.kill(os.getpid(), signal.SIGKILL)


def killed(out: Path) -> None:
    torch.set_num_threads(1)
    fit(recipe=recipe(), out=out, reporter=KillAfter())


@pytest.mark.linux
@pytest.mark.parametrize("finished", ["senet"], indirect=True)
def test_a_pilot_that_was_killed_goes_on(finished: tuple[str, Path], tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(tmp_path / "run",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(lines(tmp_path / "run" / "pilot")) == 1
    assert (tmp_path / "run" / "pilot" / "state.pt").exists()
    fit(recipe=recipe(), out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", finished[1])


@pytest.mark.parametrize("finished", ["senet"], indirect=True)
def test_the_weights_can_be_used_another_time(finished: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = finished
    again = recipe(**{"budget.allocate": str(folder / "pilot" / "weights.json"), "pilot": None})
    fit(recipe=again, out=tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


class Own(nn.Module):
    """A network of the user's, which begins with an activation and calls its ReLUs as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm, self.fc, self.head = nn.BatchNorm2d(8), nn.Linear(8, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.two(F.relu(self.one(F.relu(x))))))
        return self.head(F.relu(self.fc(x.mean((2, 3)))))


def test_senet_on_a_network_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = Own()
    network = fit(own, recipe=recipe(**{"budget.gates": 180}), out=tmp_path / "run")
    weights = found(tmp_path / "run")
    pilot = layer_weights(load(tmp_path / "run" / "pilot", model=own))
    assert list(weights) == ["relu_1", "relu_2", "relu_3", "relu_4"]
    assert weights["relu_1"] == pytest.approx(0.9, abs=1e-3)  # no layer before it: as all of the network
    assert weights["relu_4"] == pytest.approx(1 - int(pilot["fc"].count_nonzero()) / 96)
    counts = [int(network.get_buffer(f"{name}.mask").sum()) for name in weights]
    assert counts[3] == 12  # full, and what it leaves is with the others
    left = sum(list(weights.values())[:3])
    assert counts[:3] == [pytest.approx(168 * weights[name] / left, abs=1) for name in list(weights)[:3]]
    assert sum(counts) == count_gates(network, SIZE) == 180


OTHERS = {"snl": {"search": PHASE}, "deepreduce": {}, "spatial": {}, "autorep": {"search": PHASE}}


@pytest.mark.parametrize("name", OTHERS)
def test_methods_that_divide_no_budget_refuse_it(name: str) -> None:
    changes = {**SMALL, "method": {"name": name, "initial": "plain"}, **OTHERS[name]}
    with pytest.raises(RecipeError, match="is for methods that divide their budget: deepshare, trimmed, senet") as told:
        load_recipe("digits-plain", changes)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"pilot": None}, 'budget.allocate = "pruning" is measured on a copy that is trained sparse: it needs [pilot]'),
        ({"pilot.epochs": -1}, "pilot.epochs: got -1, expected greater than 0"),
        ({"pilot.density": 0.2}, "pilot.density: there is no such key"),
        ({"budget.allocate": "prune"}, 'expected "senet", "snl-densities", "snl", "pruning"'),
        ({"budget.allocate": "uniform"}, '[pilot] is for budget.allocate = "pruning" or "sensitivity" alone'),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(**overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["senet", "deepshare"])
def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_trained(name: str, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="below the minimum"):
        fit(recipe=recipe(name, **{"budget.gates": 3}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_without_layers_before_its_relus_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    network = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(BudgetError, match="no ReLU comes after a convolution or a linear layer"):
        fit(network, recipe=recipe(**{"budget.gates": 20}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(BudgetError, match="no ReLU comes after a convolution or a linear layer"):
        check_method(recipe(**{"budget.gates": 20}), network, SIZE)


@pytest.mark.parametrize("name", METHODS)
def test_a_dry_run_goes_through_all_phases(name: str, tmp_path: Path) -> None:
    check_method(recipe(name), plain_network(recipe(name), "shared"), SIZE)
    fit(recipe=recipe(name), out=tmp_path / "run", dry_run=True)
    assert not (tmp_path / "run").exists()
