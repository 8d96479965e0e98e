"""Every method through the one loop: never above its budget, read back from its folder, resumed bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from deepshare import methods
from deepshare.errors import BudgetError, RecipeError, UnsupportedModelError
from deepshare.private.api import infer
from deepshare.private.cost import predict
from deepshare.sharing.convert import count_gates
from deepshare.sharing.onnx import export_onnx
from deepshare.training.api import fit
from deepshare.training.build import load, plain_network
from deepshare.training.pipeline import check_method
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.run.folder import RunFolder
from tests.training.small_runs import StopAfter, StoppedError

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
    "deepreduce": {"teacher.model": {"name": "resnet18", "num_classes": 10, "arguments": {"channels": 1, "width": 8}}},
    "hybrenet": {"model.name": "hrn-5x5x3", "model.arguments": {"width": 1, "channels": 1}, "budget.gates": 200},
    "delphi": {"search.clip": 2.0, "method.initial": "plain", "budget.gates": 800},
    "spatial": {"method.initial": "plain", "spatial.samples": 8},
}
GATES = {"snl": BUDGET, "autorep": BUDGET, "senet": BUDGET, "deepreduce": 192, "hybrenet": 200, "delphi": 704}


def recipe(name: str, **overrides: object) -> Recipe:
    values = {
        "method.name": name,
        **SMALL,
        **({"search": PHASE} if "search" in methods.get(name).phases else {}),
        **OWN.get(name, {}),
    }
    return load_recipe("digits-plain", {**values, **{key.replace("__", "."): v for key, v in overrides.items()}})


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("senet", {"search": None}, 'method "senet" needs [search] and [finetune]'),
        ("spatial", {"finetune": None}, 'method "spatial" needs [finetune]'),
        ("spatial", {"search": PHASE}, 'method "spatial" has no [search]: that is for snl, autorep, senet, delphi'),
        ("autorep", {"gelu": PHASE}, 'method "autorep" has no soft gates: no [gelu], no [switch]'),
        ("senet", {"distillation.teacher": "gelu"}, 'set distillation.teacher = "plain"'),
        ("senet", {"distillation.weight": 0}, 'set distillation.teacher = "plain"'),
        ("senet", {"finetune.distill": 0}, "no weight of distillation to 0"),
        ("deepreduce", {"budget": None}, 'method "deepreduce" needs [budget]'),
        ("snl", {"plain": None}, 'method.initial = "plain" needs [plain] or model.weights'),
        ("snl", {"plain": None, "method.initial": "model"}, 'distillation.teacher = "plain" needs [plain]'),
        ("snl", {"plain.model": {"name": "resnet18", "num_classes": 10}}, "take plain.model away"),
        ("autorep", {"autorep.scle": 1.0}, 'did you mean "autorep.scale"?'),
        ("snl", {"budget.patch": 2}, 'method "snl" has no use for budget.patch: take it away'),
        ("delphi", {"budget.layer_sharing": False}, "no use for budget.layer_sharing"),
        ("spatial", {"budget.allocate": "counts.json"}, "no use for budget.allocate"),
        ("deepreduce", {"method.replicates": False}, "no use for method.replicates"),
        ("snl", {"autorep.scale": 1.0}, "no use for [autorep]"),
        ("snl", {"budget.gates": 0}, 'it is for autorep, delphi, and method "snl" has none'),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(name, **overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "overrides", "error", "message"),
    [
        ("deepreduce", {"budget.gates": 50}, BudgetError, "has 64 gates or more and the budget is 50"),
        ("delphi", {"budget.gates": 20}, BudgetError, "give at least 32"),
        ("senet", {"budget.gates": 5}, BudgetError, "below the minimum of 8 gates"),
        ("snl", {"budget.gates": 9999}, BudgetError, "above the 960 ReLUs"),
        ("hybrenet", {"model.name": "resnet18"}, UnsupportedModelError, "those of a ResNet"),
    ],
)
def test_what_a_method_cannot_do_is_refused_before_anything_is_trained(
    name: str, overrides: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        fit(recipe=recipe(name, **overrides), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(error, match=message):
        check_method(recipe(name, **overrides), plain_network(recipe(name, **overrides), "shared"), (1, 8, 8))


@pytest.mark.parametrize("name", ["deepshare", "senet"])
def test_densities_that_are_not_known_are_refused_without_training(name: str) -> None:
    values = {"budget.allocate": "senet", "budget.gates": 96, "model.arguments.depth": 10}
    wanted = recipe("senet", **values) if name == "senet" else load_recipe("digits", values)
    with pytest.raises(BudgetError, match="SENet's densities are known for the sites of resnet18 and wrn22-8 only"):
        check_method(wanted, plain_network(wanted, "shared"), (1, 8, 8))


@pytest.fixture(scope="module", params=methods.names(lambda method: method.kind == "gated"))
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
    assert result["best_epoch"] in range(1, RunFolder(folder).lines()[-1]["epoch"] + 1)
    found = count_gates(load(folder), SIZE)
    assert found == result["gates"] <= budget.gates
    assert found == GATES.get(name, found)
    assert count_gates(load(folder, best=True), SIZE) == found


def test_the_network_is_rebuilt_from_the_folder_alone(finished: tuple[str, Path]) -> None:
    name, folder = finished
    images = torch.randn(4, *SIZE)
    again = fit(recipe=recipe(name), out=folder, resume=True)
    assert torch.equal(load(folder)(images), again(images))


@pytest.mark.linux
@pytest.mark.usefixtures("parties_are_threads")
def test_the_network_is_exported_and_runs_privately(finished: tuple[str, Path], tmp_path: Path) -> None:
    network, images = load(finished[1]), torch.randn(2, *SIZE)
    export_onnx(network, tmp_path / "network.onnx", SIZE)  # which counts the comparisons in the graph
    result = infer(network, images, "gateshare")
    assert torch.allclose(result.logits.float(), network(images), atol=2**-5)


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(finished: tuple[str, Path], tmp_path: Path) -> None:
    name, whole = finished
    stops = [("search", 1), ("search", 2)] if "search" in methods.get(name).phases else []
    for number, stop in enumerate([*stops, ("finetune", 1)]):
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=tmp_path / "run", resume=number > 0, reporter=StopAfter(*stop))
    fit(recipe=recipe(name), out=tmp_path / "run", resume=True)
    for file in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.linux
@pytest.mark.usefixtures("parties_are_threads")
@pytest.mark.parametrize("name", methods.names(lambda method: method.without_gates))
def test_a_budget_of_0_leaves_polynomials_alone(name: str, tmp_path: Path) -> None:
    fit(recipe=recipe(name, budget__gates=0), out=tmp_path / "run")
    network, images = load(tmp_path / "run"), torch.randn(2, *SIZE)
    assert count_gates(network, SIZE) == json.loads((tmp_path / "run" / "result.json").read_text())["gates"] == 0
    assert not any(isinstance(module, torch.nn.ReLU) for module in network.modules())
    export_onnx(network, tmp_path / "network.onnx", SIZE)
    assert predict(network, SIZE, "crypten").online.comparisons == 0
    if name == "autorep":  # DELPHI's squares leave the range of fixed point, hardly trained as they are here
        result = infer(network, images, "gateshare")
        assert result.cost.online.comparisons == 0
        assert torch.allclose(result.logits.float(), network(images), atol=2**-5)


@pytest.mark.parametrize("finished", ["deepreduce"], indirect=True)
def test_the_teacher_may_be_another_network(finished: tuple[str, Path]) -> None:
    _, folder = finished
    assert load(folder / "teacher").get_parameter("conv1.weight").shape[0] == 8
    assert load(folder).get_parameter("conv1.weight").shape[0] == 4
