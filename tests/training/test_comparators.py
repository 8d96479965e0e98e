"""Every method through the one loop: never above its budget, read back from its folder, resumed bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from deepshare.sharing.convert import count_gates
from deepshare.training.fit import fit
from deepshare.training.networks import load
from deepshare.training.progress import EpochLine, Reporter
from deepshare.training.recipe import Recipe, load_recipe
from deepshare.training.schema import SEARCHING

SIZE = (1, 8, 8)
BUDGET = 192
PHASE = {"epochs": 2, "batch": 32, "lr": 0.01, "schedule": "none", "weight_decay": 0.0}
SMALL = {
    "model.arguments": {"width": 4, "channels": 1, "depth": 10},
    "data.subset": 96,
    "data.validation": 32,
    "teacher.epochs": 1,
    "plain.epochs": 1,
    "budget": {"gates": BUDGET, "allocate": "uniform"},
    "finetune": {**PHASE, "epochs": 1},
}
OWN: dict[str, dict[str, object]] = {
    "snl": {"snl.lasso": 1e-3, "method.initial": "plain", "search.optimiser": "adam", "distillation.teacher": "plain"},
    "autorep": {"autorep.fit_steps": 4, "autorep.fit_every": 2, "search.optimiser": "adam"},
    "senet": {"distillation.teacher": "plain", "method.initial": "plain", "senet.attention": 10.0},
    "deepreduce": {"teacher.model": {"name": "resnet18", "classes": 10, "arguments": {"channels": 1, "width": 8}}},
    "hybrenet": {"model.name": "hrn-5x5x3", "model.arguments": {"width": 1, "channels": 1}, "budget.gates": 200},
    "delphi": {"search.clip": 2.0, "method.initial": "plain", "budget.gates": 800},
    "spatial": {"method.initial": "plain", "spatial.samples": 8},
}
GATES = {"snl": BUDGET, "senet": BUDGET, "deepreduce": 192, "hybrenet": 200, "delphi": 704}


def recipe(name: str, **overrides: object) -> Recipe:
    values = {"method.name": name, **SMALL, **({"search": PHASE} if name in SEARCHING else {}), **OWN[name]}
    return load_recipe("digits-plain", {**values, **{key.replace("__", "."): v for key, v in overrides.items()}})


class StoppedError(Exception):
    pass


class StopAfter(Reporter):
    def __init__(self, phase: str, epoch: int) -> None:
        self.last = phase, epoch

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        if (line.phase, line.epoch) == self.last:
            raise StoppedError


@pytest.fixture(scope="module", params=OWN)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    fit(recipe=recipe(request.param), out=folder)
    return request.param, folder


def test_the_count_is_exact_and_within_the_budget(finished: tuple[str, Path]) -> None:
    name, folder = finished
    budget = load_recipe(folder / "recipe.toml").budget
    assert budget is not None
    assert isinstance(budget.gates, int)
    result = json.loads((folder / "result.json").read_text())
    found = count_gates(load(folder), SIZE)
    assert found == result["gates"] <= budget.gates
    assert found == GATES.get(name, found)
    assert count_gates(load(folder, best=True), SIZE) == found


def test_the_network_is_rebuilt_from_the_folder_alone(finished: tuple[str, Path]) -> None:
    name, folder = finished
    images = torch.randn(4, *SIZE)
    again = fit(recipe=recipe(name), out=folder, resume=True)
    assert torch.equal(load(folder)(images), again(images))


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(finished: tuple[str, Path], tmp_path: Path) -> None:
    name, whole = finished
    stops = [("search", 1), ("search", 2)] if name in SEARCHING else []
    for number, stop in enumerate([*stops, ("finetune", 1)]):
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=tmp_path / "run", resume=number > 0, reporter=StopAfter(*stop))
    fit(recipe=recipe(name), out=tmp_path / "run", resume=True)
    for file in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()
