"""Networks, plans and methods built from recipes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.data.images import height_and_width
from deepshare.errors import CheckpointError, PlanError
from deepshare.sharing.convert import count_gates, share
from deepshare.sharing.piecewise import REACH
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import plan
from deepshare.sharing.sites import find_sites
from deepshare.training.build import build as build_model
from deepshare.training.build import layout_of, load, make_plan, of_first_sites, plain_network
from deepshare.training.evaluate import evaluate
from deepshare.training.recipe.allocation import find
from deepshare.training.recipe.files import Recipe, load_recipe, names
from deepshare.training.recipe.schema import Model
from deepshare.training.run.checkpoint import WeightsHeader, plan_checksum, save_weights
from deepshare.training.run.folder import RunFolder
from tests.training.allocation.shapes import build, sites_of
from tests.training.small_runs import Finished


def test_first_sites_decide_alone() -> None:
    sites = sites_of("resnet18", 32)
    counts = {site.name: float(index) for index, site in enumerate(sites, 1)}
    kept = {name: count for name, count in of_first_sites(counts, sites).items() if count}
    assert kept == {"layer1.0.act1": 1, "layer2.0.act1": 5, "layer3.0.act1": 9, "layer4.0.act1": 13}
    halves = [count for count in of_first_sites(counts, sites, max_group=2).values() if count]
    assert halves == [1, 3, 5, 7, 9, 11, 13, 15]


PROTOTYPES = {
    "cifar100-resnet18-49.9k": [8, 66, 256, 512],
    "cifar100-resnet18-12.9k": [1, 10, 65, 322],
    "cifar100-resnet18-6k": [1, 4, 28, 135],
    "cifar100-resnet18-6k-no-budget": [3, 6, 14, 31],
    "cifar100-resnet18-6k-no-layer-sharing": [1] * 10 + [2, 2, 7, 8, 8, 8],
    "cifar100-resnet18-6k-no-replicates": [1] * 10 + [2, 2, 7, 8, 8, 8],
    "cifar100-wrn22-8-150k": [1, 49, 256, 512],
    "cifar100-wrn22-8-120k": [1, 28, 224, 512],
    "cifar100-wrn22-8-60k": [1, 11, 91, 381],
    "tiny-imagenet-resnet18-190k": [8, 57, 256, 512],
    "tiny-imagenet-resnet18-55k": [1, 11, 70, 339],
    "tiny-imagenet-resnet18-30k": [1, 5, 36, 180],
    "ade20k-deeplabv3-2556k": [4, 10, 10, 15, 16, 21, 42, 62, 104, 55],
    "camvid-small-3": [2, 5, 5, 10, 11, 21, 31, 52, 7],
    "camvid-small-10": [6, 17, 18, 34, 35, 70, 104, 173, 24],
    "cifar100-small": [1, 1, 2, 8],
    "digits": [1, 4, 10, 24],
}


NEURONS = {
    "cifar100-resnet18": 491_520,
    "cifar100-wrn22-8": 1_359_872,
    "tiny-imagenet-resnet18": 1_966_080,
    "ade20k-deeplabv3": 85_262_336,
    "cifar100-small": 122_880,
    "camvid-small": 6_695_040,
    "digits": 3_840,
    "own": 491_520,
}


@pytest.mark.parametrize("name", [name for name in names() if load_recipe(name).method.name == "deepshare"])
def test_the_budget_of_every_recipe_can_be_met(name: str) -> None:
    recipe: Recipe = load_recipe(name)
    if recipe.budget is None:
        raise ValueError(name)
    model = build(recipe.model.name, num_classes=recipe.model.num_classes, **recipe.model.arguments)
    size = (int(recipe.model.arguments.get("channels", 3)), *height_and_width(recipe.data.image_size))
    allocate = "uniform" if recipe.budget.allocate == "snl" else recipe.budget.allocate
    found = plan(
        model,
        size,
        recipe.budget.gates,
        find(allocate).read(find_sites(model, size)),
        layer_sharing=recipe.budget.layer_sharing,
        max_group=recipe.budget.max_group,
    )
    assert found.neurons == next(neurons for start, neurons in NEURONS.items() if name.startswith(start))
    assert 0.99 * found.budget < found.gates <= found.budget
    if name in PROTOTYPES:
        assert [group.prototypes for group in found.groups] == PROTOTYPES[name]
    if name.startswith("ade20k"):
        assert found.gates == 2_555_904  # the paper's, to the last gate


def test_channels_last_unless_a_strided_pointwise_convolution_is_narrow() -> None:
    size = (3, 16, 16)
    assert layout_of(zoo.resnet18(10, width=16, depth=10), size) == torch.channels_last
    assert layout_of(zoo.resnet18(10, width=8, depth=10), size) == torch.contiguous_format
    assert layout_of(nn.Conv2d(3, 8, 3, stride=2), size) == torch.channels_last
    assert layout_of(nn.Conv2d(3, 8, 1), size) == torch.channels_last


def test_a_network_that_views_maps_as_vectors_keeps_the_usual_layout() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x)).view(-1, 8 * 14 * 14)

    assert layout_of(Net(), (3, 16, 16)) == torch.contiguous_format


def test_a_network_without_images_is_left_as_it_is() -> None:
    assert layout_of(nn.Linear(2, 2), (2,)) == torch.contiguous_format


@pytest.fixture
def folder(finished: Finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def test_the_network_is_rebuilt_from_the_folder_alone(finished: Finished) -> None:
    folder, trained = finished
    loaded = load(folder)
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(loaded(images), trained(images))
    assert not loaded.training
    assert count_gates(loaded, (1, 8, 8)) == Plan.load(folder / "plan.json").gates


def test_the_result_is_that_of_the_test_images(finished: Finished) -> None:
    result = json.loads((finished[0] / "result.json").read_text())
    for name, best in (("last", False), ("best", True)):
        assert result["test"][name]["accuracy"] == evaluate(load(finished[0], best=best), "digits").accuracy
    assert result["gates"] == Plan.load(finished[0] / "plan.json").gates


def test_the_teacher_is_a_run_of_its_own(finished: Finished) -> None:
    teacher = load(finished[0] / "teacher")
    assert sum(isinstance(module, nn.GELU) for module in teacher.modules()) == 8
    assert load_recipe(finished[0] / "teacher" / "recipe.toml") == load_recipe(finished[0] / "recipe.toml")


class Pooled(nn.Module):
    """What early versions did not rewrite: a maximum of two tensors, and an adaptive max-pool."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.relu, self.fc = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Linear(4, num_classes)
        self.pool = nn.AdaptiveMaxPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y: Tensor = self.fc(self.pool(torch.maximum(self.relu(x), 0.5 * x)).flatten(1))
        return y


def finished_by(reach: int, rewriting: dict[str, Any], folder: Path) -> tuple[Path, nn.Module]:
    """Write what a finished run of a version with such a reach leaves, and return its network, too."""
    wanted = Model(name=f"{__name__}:Pooled", num_classes=10, **rewriting)
    recipe = load_recipe("digits", {"budget.gates": "50%"}).model_copy(update={"model": wanted})
    base = build_model(recipe.model, reach)
    made = make_plan(recipe, base, (1, 8, 8))
    network = share(base, made).eval()
    run = RunFolder(folder)
    run.begin(recipe, {}, made, None)
    save_weights(run.model, network, WeightsHeader("shared", (1, 8, 8), plan_checksum(made), reach=reach))
    return folder, network


@pytest.mark.parametrize("reach", [1, REACH])
def test_runs_load_with_the_sites_of_their_plan(reach: int, tmp_path: Path) -> None:
    folder, network = finished_by(reach, {"piecewise_to_relu": True}, tmp_path)
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(load(folder)(images), network(images))
    assert len(Plan.load(folder / "plan.json").groups) == reach


def test_runs_of_early_versions_do_not_load_as_another_network(tmp_path: Path) -> None:
    for reach in (1, REACH):
        folder, network = finished_by(reach, {"maxpool": "avg"}, tmp_path / str(reach))
        if reach == 1:
            with pytest.raises(CheckpointError, match="does not tell whether its activations or pools were replaced"):
                load(folder)
        else:
            images = torch.randn(2, 1, 8, 8)
            assert torch.equal(load(folder)(images), network(images))


def test_folders_that_are_no_finished_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(CheckpointError, match="is no run folder"):
        load(tmp_path / "foreign")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="its weights are not there: put model"):
        load(folder)
    (folder / "result.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        load(folder)


def test_best_weights_that_are_not_there(folder: Path) -> None:
    (folder / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"best\.safetensors is not there: take the last weights"):
        load(folder, best=True)
    load(folder)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load(folder)


def test_a_plan_that_is_missing_or_damaged(folder: Path) -> None:
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text[:-50])
    with pytest.raises(PlanError, match=r"plan\.json"):
        load(folder)


def test_another_plan_is_refused(folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_text())
    content["mapping"] = "contiguous"
    (folder / "plan.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="another plan"):
        load(folder)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    shutil.copy(folder / "teacher" / "model.safetensors", folder / "model.safetensors")
    recipe = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(recipe.replace("width = 8", "width = 4"))
    with pytest.raises(CheckpointError, match="another network"):
        load(folder)


def test_a_tag_of_timm_fetches_no_weights_and_says_so() -> None:
    said: list[str] = []
    recipe = load_recipe("digits", {"model.name": "timm:resnet10t.c3_in1k", "model.arguments": {"in_chans": 1}})
    plain_network(recipe, "plain", said.append)
    assert said == [
        "timm:resnet10t.c3_in1k: no weights are fetched, so it starts from random ones: give them with --weights"
    ]
