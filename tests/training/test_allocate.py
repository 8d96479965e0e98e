"""Weights for a plan: the shipped densities, files of counts, and what the recipes make of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deepshare import zoo
from deepshare.data.pictures import height_and_width
from deepshare.errors import BudgetError
from deepshare.sharing.plan import plan
from deepshare.sharing.sites import Sites, find_sites
from deepshare.training.allocation import published, weights_of
from deepshare.training.allocation.files import read_counts
from deepshare.training.build import of_first_sites
from deepshare.training.recipe.files import Recipe, load_recipe, names


def build(name: str, **arguments: Any) -> nn.Module:
    with torch.device("meta"):
        return zoo.build(name, **arguments)


def sites_of(name: str, size: int, **arguments: int) -> Sites:
    return find_sites(build(name, **arguments), (3, size, size))


# Counts of SENet at 25,000 ReLUs, without the stem that this network's stem does not have.
COUNTS = [655, 655, 655, 721, 885, 1245, 1311, 1376, 1671, 2032, 2064, 2130, 2294, 2458, 2458, 2458]


def test_resnet18_gets_the_counts_of_senet() -> None:
    assert [round(weight) for weight in published.weights("senet", sites_of("resnet18", 32)).values()] == COUNTS


def test_wide_resnet_gets_the_count_of_senet_without_the_last_relu() -> None:
    total = sum(published.weights("senet", sites_of("wrn22-8", 32)).values())
    assert round(total + 0.57 * 512 * 8 * 8) == 239_436


@pytest.mark.parametrize(("size", "width", "factor"), [(64, 64, 4), (32, 16, 0.25), (64, 16, 1)])
def test_other_widths_and_sizes_keep_the_proportions(size: int, width: int, factor: float) -> None:
    usual = published.weights("senet", sites_of("resnet18", 32))
    assert published.weights("senet", sites_of("resnet18", size, width=width)) == pytest.approx(
        {name: weight * factor for name, weight in usual.items()}
    )


def test_a_network_without_densities_is_told_the_cure() -> None:
    with pytest.raises(BudgetError, match="allocate by pruning, which measures them, by uniform, by snl or by a file"):
        published.weights("senet", sites_of("resnet18", 32, depth=10))


@pytest.mark.parametrize("allocate", ["pruning", "sensitivity"])
def test_what_takes_a_pilot_is_told_where_its_weights_come_from(allocate: str) -> None:
    with pytest.raises(BudgetError, match=f"{allocate} is measured in training: .* give its pilot/weights.json here"):
        weights_of(allocate, sites_of("resnet18", 32))


def test_first_sites_decide_alone() -> None:
    sites = sites_of("resnet18", 32)
    counts = {site.name: float(index) for index, site in enumerate(sites, 1)}
    kept = {name: count for name, count in of_first_sites(counts, sites).items() if count}
    assert kept == {"layer1.0.act1": 1, "layer2.0.act1": 5, "layer3.0.act1": 9, "layer4.0.act1": 13}
    halves = [count for count in of_first_sites(counts, sites, max_group=2).values() if count]
    assert halves == [1, 3, 5, 7, 9, 11, 13, 15]


def test_a_file_of_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"a": 3, "b": 0.5}))
    assert weights_of(str(path), sites_of("resnet18", 32)) == {"a": 3.0, "b": 0.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*counts.json: No such file or directory"),
        ("{", r"counts.json is not JSON"),
        ("[1]", "give one number for each site"),
        ('{"a": "1"}', "give one number for each site"),
        ('{"a": true}', "give one number for each site"),
    ],
)
def test_a_file_that_holds_no_counts(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BudgetError, match=message):
        read_counts(path)


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
        weights_of(allocate, find_sites(model, size)),
        layer_sharing=recipe.budget.layer_sharing,
        max_group=recipe.budget.max_group,
    )
    assert found.neurons == next(neurons for start, neurons in NEURONS.items() if name.startswith(start))
    assert 0.99 * found.budget < found.gates <= found.budget
    if name in PROTOTYPES:
        assert [group.prototypes for group in found.groups] == PROTOTYPES[name]
    if name.startswith("ade20k"):
        assert found.gates == 2_555_904  # the paper's, to the last gate


def test_densities_of_snl_that_are_not_shipped_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = sites_of("resnet18", 32, width=16)
    monkeypatch.setattr("deepshare.training.allocation.published.tomllib.loads", lambda text: {"senet": {}})
    with pytest.raises(BudgetError, match="SNL's densities are known for no network yet: "):
        weights_of("snl-densities", sites)
    table = {site.name: 0.5 for site in sites}
    shipped = {"snl": {"resnet18": table}}
    monkeypatch.setattr("deepshare.training.allocation.published.tomllib.loads", lambda text: shipped)
    assert weights_of("snl-densities", sites) == {site.name: site.neurons / 2 for site in sites}
