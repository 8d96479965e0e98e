"""Exact counts on networks whose answers are known."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from deepshare.data import ImageSet
from deepshare.training.evaluate import evaluate


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
