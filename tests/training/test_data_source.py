"""The data of a recipe: splits, sizes and preparation."""

from pathlib import Path

from lightning_fabric import Fabric

from deepshare.training.data_source import make_data_source
from deepshare.training.evaluate import Evaluation, Sliding
from deepshare.training.recipe.files import load_recipe, to_toml

BOTH: tuple[Evaluation, ...] = ("whole", "sliding")


def test_the_recipe_says_how_test_images_are_seen(camvid_dir: Path, tmp_path: Path) -> None:
    recipe = load_recipe("camvid-small-plain")
    assert "evaluation" not in to_toml(recipe), "what a run recorded before must stay what is recorded"
    assert make_data_source(None, recipe, camvid_dir).view is None
    recipe = load_recipe("camvid-small-plain", {"data.evaluation": "sliding"})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    feed = make_data_source(None, load_recipe(tmp_path / "recipe.toml"), camvid_dir)
    assert feed.view == Sliding((180, 240))


def test_training_crops_and_whole_images_have_height_and_width(camvid_dir: Path) -> None:
    changes = {"data.image_size": [8, 12], "data.augmentation.crop": [6, 10]}
    feed = make_data_source(None, load_recipe("camvid-small-plain", changes), camvid_dir)
    # Gates are counted where they will be computed, on whole images.
    assert feed.input_size == (3, 8, 12)
    assert feed.sample(2).shape == (2, 3, 8, 12)
    images, masks = next(iter(feed.train(2, 0, 0, Fabric(accelerator="cpu", devices=1))))
    assert images.shape == (2, 3, 6, 10) and masks.shape == (2, 6, 10)
