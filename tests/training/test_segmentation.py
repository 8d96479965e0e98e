"""Recipes for segmentation: what they have in common with the paper's, and images that are not square."""

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from deepshare.data import load
from deepshare.errors import RecipeError
from deepshare.methods.deepshare import DeepShareOptions
from deepshare.training.data_source import make_data_source
from deepshare.training.evaluate import evaluate
from deepshare.training.recipe.files import load_recipe, to_toml
from tests.data.unpacked import Unpack

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


@pytest.mark.parametrize(("text", "size"), [("[6, 9]", (6, 9)), ("9", 9)])
def test_a_size_is_a_number_or_height_and_width(text: str, size: object, tmp_path: Path) -> None:
    recipe = load_recipe("camvid-small-plain", {"data.image_size": text, "data.augmentation.crop": text})
    assert recipe.data.image_size == recipe.data.augmentation.crop == size
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "recipe.toml").data == recipe.data


@pytest.mark.parametrize("size", ["[6]", "[6, 0]", "0", "wide"])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(RecipeError, match=r"data\.image_size"):
        load_recipe("camvid-small-plain", {"data.image_size": size})


def test_training_crops_and_whole_images_have_height_and_width(camvid_dir: Path) -> None:
    changes = {"data.image_size": [8, 12], "data.augmentation.crop": [6, 10]}
    feed = make_data_source(None, load_recipe("camvid-small-plain", changes), camvid_dir)
    # Gates are counted where they will be computed, on whole images.
    assert feed.input_size == (3, 8, 12)
    assert feed.sample(2).shape == (2, 3, 8, 12)
    images, masks = next(iter(feed.train(2, 0, 0, Fabric(accelerator="cpu", devices=1))))
    assert images.shape == (2, 3, 6, 10) and masks.shape == (2, 6, 10)


class Road(nn.Module):
    """Says road of every pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(11)[3].view(1, -1, 1, 1).expand(len(x), -1, *x.shape[2:])


def test_mean_iou_on_real_images_is_counted_over_labelled_pixels(real_data: Unpack) -> None:
    whole = load("camvid", real_data("camvid-240x180")).test
    assert len(whole) == 233
    test = whole.take(torch.arange(0, 233, 12))
    assert isinstance(test.labels, Tensor)
    known = test.labels[test.labels != 11]
    assert known.numel() < test.labels.numel()
    share = float((known == 3).double().mean())
    for size in (None, (180, 240)):
        result = evaluate(Road(), test, image_size=size, batch=8)
        assert result.n == len(test) == 20
        assert result.accuracy == pytest.approx(share)
        assert result.miou == pytest.approx(share / len(known.unique()))
