"""Evaluation: counts by hand, and images of another size than the input."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from deepshare import zoo
from deepshare.data import FileImages, ImageSet, load
from deepshare.errors import DataError
from deepshare.training.evaluate import Evaluation, Sliding, Whole, evaluate, starts
from tests.data.unpacked import Unpack


class Says(nn.Module):
    """Answers with the first channel's value as the class, for each image or each pixel."""

    def __init__(self, classes: int, pixels: bool) -> None:
        super().__init__()
        self.classes, self.pixels = classes, pixels
        self.norm = nn.BatchNorm2d(1, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        said = x[:, 0].round().long()
        said = said if self.pixels else said[:, 0, 0]
        return 10.0 * torch.eye(self.classes)[said].movedim(-1, 1)


def pictures(values: list[list[int]], labels: Tensor, classes: int, ignore: int | None = None) -> ImageSet:
    images = torch.tensor(values, dtype=torch.uint8)[:, None, None, :]
    names = tuple(map(str, range(classes)))
    return ImageSet("pictures", images, labels, names, mean=(0.0,), std=(1 / 255,), ignore=ignore)


def test_accuracy_and_loss_by_hand() -> None:
    data = pictures([[0], [1], [2], [2]], torch.tensor([0, 1, 2, 1]), classes=3)
    result = evaluate(Says(3, pixels=False), data, batch=3)
    right, wrong = math.log(1 + 2 * math.exp(-10)), 10 + math.log(1 + 2 * math.exp(-10))
    assert (result.n, result.accuracy, result.miou) == (4, 0.75, None)
    assert result.loss == pytest.approx((3 * right + wrong) / 4)
    assert result.score == 0.75


def test_mean_iou_by_hand() -> None:
    # Class 0: 1 of 2; class 1: 1 of 3; class 2 never occurs; one pixel is ignored.
    labels = torch.tensor([[[0, 0, 1, 1]], [[1, 255, 0, 1]]], dtype=torch.uint8)
    data = pictures([[0, 1, 1, 0], [0, 2, 0, 0]], labels, classes=3, ignore=255)
    result = evaluate(Says(3, pixels=True), data, batch=1)
    assert result.accuracy == pytest.approx(3 / 7)
    assert result.miou == pytest.approx((2 / 6 + 1 / 5) / 2)
    assert result.score == result.miou


def test_the_mode_of_the_network_is_restored_and_its_statistics_stay() -> None:
    model = Says(2, pixels=False).train()
    evaluate(model, pictures([[0], [1]], torch.tensor([0, 1]), classes=2))
    assert model.training
    assert model.norm.num_batches_tracked == 0


def test_datasets_and_loaders_of_the_user() -> None:
    data = TensorDataset(torch.tensor([0.0, 1.0, 1.0, 0.0]).view(4, 1, 1, 1), torch.tensor([0, 1, 0, 0]))
    model = Says(2, pixels=False)
    assert evaluate(model, data).accuracy == 0.75
    assert evaluate(model, DataLoader(data, batch_size=4)) == evaluate(model, data)


def test_a_data_set_by_name_is_its_test_part() -> None:
    assert evaluate(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "digits").n == 300


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
