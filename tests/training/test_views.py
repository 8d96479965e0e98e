"""Masks that are larger or smaller than the network's input are judged at their own size, by hand."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.data import FileImages, ImageSet
from deepshare.errors import DataError
from deepshare.training.data_source import make_data_source
from deepshare.training.evaluate import Evaluation, Sliding, Whole, evaluate, starts
from deepshare.training.recipe.files import load_recipe, to_toml

BOTH: tuple[Evaluation, ...] = ("whole", "sliding")


class Shade(nn.Module):
    """Says class 1 of bright pixels and class 0 of dark ones; takes images of one size only."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        assert tuple(x.shape[2:]) == self.size
        return torch.stack([0.5 - x[:, 0], x[:, 0] - 0.5], 1)


class Place(nn.Module):
    """Logits that depend on the place in the crop: class 1 has the number of the column."""

    def forward(self, x: Tensor) -> Tensor:
        ramp = torch.arange(x.shape[3], dtype=x.dtype).expand(len(x), 1, *x.shape[2:])
        return torch.cat([torch.zeros_like(ramp), ramp], 1)


def scenes(images: Tensor | FileImages, masks: Tensor | FileImages) -> ImageSet:
    return ImageSet("scenes", images, masks, ("dark", "bright"), mean=(0.0,), std=(1.0,), ignore=255)


def halves(height: int, width: int) -> tuple[Tensor, Tensor]:
    """An image with a dark and a bright half, and its mask."""
    image, mask = torch.zeros(1, height, width, dtype=torch.uint8), torch.zeros(height, width, dtype=torch.uint8)
    image[..., width // 2 :], mask[:, width // 2 :] = 255, 1
    return image, mask


@pytest.mark.parametrize("evaluation", BOTH)
@pytest.mark.parametrize("size", [(4, 8), (8, 16), (32, 64), (20, 16), (10, 40)])
def test_every_labelled_pixel_of_the_mask_is_judged(evaluation: Evaluation, size: tuple[int, int]) -> None:
    image, mask = halves(*size)
    mask[0] = 255
    mask[1, 0] = 1  # wrong, on purpose
    result = evaluate(Shade((8, 8)), scenes(image[None], mask[None]), image_size=8, evaluation=evaluation)
    known, dark = (size[0] - 1) * size[1], (size[0] - 1) * (size[1] // 2)
    assert result.accuracy == pytest.approx(1 - 1 / known)
    assert result.miou == pytest.approx(((dark - 1) / dark + (known - dark) / (known - dark + 1)) / 2)


def test_by_default_the_mask_is_fitted_into_the_frame_too() -> None:
    image, mask = halves(8, 32)
    mask[:, 0] = 1
    data = scenes(image[None], mask[None])
    assert evaluate(Shade((8, 8)), data, image_size=8).accuracy != 1 - 1 / 32
    assert evaluate(Shade((8, 8)), data, image_size=8, evaluation="whole").accuracy == 1 - 1 / 32


def test_files_of_unequal_size() -> None:
    sizes = [(16, 8), (10, 40), (8, 8)]
    pairs = [halves(*size) for size in sizes]
    paths = tuple(Path(str(number)) for number in range(3))
    images = FileImages(paths, lambda path: pairs[int(path.name)][0])
    masks = FileImages(paths, lambda path: pairs[int(path.name)][1])
    for evaluation in BOTH:
        result = evaluate(Shade((8, 8)), scenes(images, masks), image_size=8, evaluation=evaluation, batch=3)
        assert (result.n, result.accuracy, result.miou) == (3, 1.0, 1.0)


def test_an_image_of_the_inputs_size_is_one_crop() -> None:
    images = torch.randint(0, 256, (3, 3, 32, 48), dtype=torch.uint8)
    masks = torch.randint(0, 5, (3, 32, 48), dtype=torch.uint8)
    data = ImageSet("scenes", images, masks, tuple("abcde"), mean=(0.0,) * 3, std=(1.0,) * 3, ignore=4)
    model = zoo.build("deeplabv3-mobilenetv2", num_classes=5, aspp_width=8, width=0.25)
    plain, whole, sliding = (evaluate(model, data, image_size=(32, 48), evaluation=e) for e in (None, *BOTH))
    assert plain.loss == pytest.approx(whole.loss, rel=1e-5) == pytest.approx(sliding.loss, rel=1e-5)
    assert plain.miou == pytest.approx(whole.miou, abs=2e-3) == pytest.approx(sliding.miou, abs=2e-3)


def test_crops_that_overlap_are_averaged() -> None:
    # Crops of 3 columns, two apart: columns 0-2 and 2-4; the third column is 2 in the first crop and 0 in the second.
    assert starts(5, 3) == [0, 2]
    logits = Sliding((3, 3)).logits(Place(), torch.zeros(1, 1, 3, 5), (3, 5))
    assert logits[0, 1].tolist() == [[0, 1, 1, 1, 2]] * 3
    # The last crop is pulled back to the end: columns 0-2 and 1-3.
    logits = Sliding((3, 3)).logits(Place(), torch.zeros(1, 1, 3, 4), (3, 4))
    assert logits[0, 1].tolist() == [[0, 0.5, 1.5, 2]] * 3


def test_crops_cover_an_image() -> None:
    for whole in range(6, 40):
        begun = starts(whole, 6)
        assert begun[0] == 0 and begun[-1] == whole - 6
        assert all(0 < after - before <= 4 for before, after in pairwise(begun))


def test_logits_of_the_whole_image_are_scaled_back() -> None:
    # 2x4 pixels in a frame of 4x4, at scale 1, in the middle rows: those come back and nothing of the rest.
    logits = torch.full((1, 1, 4, 4), 9.0)
    logits[0, 0, 1:3] = torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]])
    back = Whole((4, 4)).logits(nn.Identity(), logits, (2, 4))
    torch.testing.assert_close(back[0, 0], logits[0, 0, 1:3])
    # Twice the size: between two pixels a quarter of the way, and at the rim what is there.
    back = Whole((4, 4)).logits(nn.Identity(), logits, (4, 8))
    torch.testing.assert_close(back[0, 0, 0], torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]))
    torch.testing.assert_close(back[0, 0, :, 0], torch.tensor([0.0, 1, 3, 4]))


@pytest.mark.parametrize("evaluation", BOTH)
def test_only_masks_have_a_size(evaluation: Evaluation) -> None:
    labels = torch.tensor([0, 1])
    data = ImageSet("two", torch.zeros(2, 1, 8, 8, dtype=torch.uint8), labels, ("a", "b"), mean=(0.0,), std=(1.0,))
    with pytest.raises(DataError, match=f'two: evaluation "{evaluation}" is for data sets with a mask'):
        evaluate(nn.Identity(), data, image_size=8, evaluation=evaluation)
    image, mask = halves(8, 8)
    with pytest.raises(DataError, match="needs an image size"):
        evaluate(nn.Identity(), scenes(image[None], mask[None]), evaluation=evaluation)


def test_the_recipe_says_how_test_images_are_seen(camvid_dir: Path, tmp_path: Path) -> None:
    recipe = load_recipe("camvid-small-plain")
    assert "evaluation" not in to_toml(recipe), "what a run recorded before must stay what is recorded"
    assert make_data_source(None, recipe, camvid_dir).view is None
    recipe = load_recipe("camvid-small-plain", {"data.evaluation": "sliding"})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    feed = make_data_source(None, load_recipe(tmp_path / "recipe.toml"), camvid_dir)
    assert feed.view == Sliding((180, 240))
