"""The packaged recipes for segmentation."""

import pytest

from deepshare.methods.deepshare import DeepShareOptions
from deepshare.training.recipe.files import load_recipe

SHARED = ("camvid-small-3", "camvid-small-10")


@pytest.mark.parametrize("name", SHARED)
def test_small_ones_train_as_the_papers(name: str) -> None:
    small, paper = load_recipe(name), load_recipe("ade20k-deeplabv3-2556k")
    assert small.model.name == paper.model.name
    assert [recipe.section(DeepShareOptions).sharpness for recipe in (small, paper)] == [4, 4]
    assert {phase: p.schedule for phase, p in small.phases.items()} == {
        phase: p.schedule for phase, p in paper.phases.items() if phase != "plain"
    }
    assert not small.needs_teacher
    assert not small.needs_plain


@pytest.mark.parametrize("name", SHARED)
def test_small_ones_see_what_the_plain_network_sees(name: str) -> None:
    shared, plain = load_recipe(name), load_recipe("camvid-small-plain")
    assert (shared.model, shared.data) == (plain.model, plain.data)
    assert sum(phase.epochs for phase in shared.phases.values()) == plain.phases["plain"].epochs


def test_they_can_start_from_the_trained_plain_network() -> None:
    recipe = load_recipe("camvid-small-3", {"method.initial": "plain", "plain.weights": "runs/plain"})
    assert list(recipe.phases) == ["plain", "gelu", "switch", "finetune"]
