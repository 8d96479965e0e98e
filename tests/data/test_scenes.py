import pytest
import torch
from torch import Tensor

from deepshare.data import Fit, SceneAugment
from deepshare.data.augment import DRAWS


def scene(height: int, width: int) -> tuple[Tensor, Tensor]:
    """An image whose every pixel says where it is, and a mask of the same numbers."""
    numbers = torch.arange(height * width, dtype=torch.uint8).view(1, 1, height, width)
    return numbers.expand(1, 3, -1, -1).contiguous(), numbers[0].contiguous()


def draws(y: float, x: float, flip: float = 0.0, scale: float = 0.5) -> Tensor:
    table = torch.full((1, DRAWS), 0.5)
    table[0, [0, 1, 2, 7]] = torch.tensor([y, x, flip, scale])
    return table


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("y", "x"), [(0, 0), (1, 0), (2, 3), (4, 5)])
def test_crop_at_natural_scale_is_a_slice(y: int, x: int, flip: bool) -> None:
    images, masks = scene(10, 12)
    crop = SceneAugment(crop=(6, 7), scale=(1.0, 1.0))
    out, labels = crop(images, masks, draws(y / 4, x / 5, 0.9 if flip else 0.1), 255)
    expected = images[:, :, y : y + 6, x : x + 7].float() / 255
    torch.testing.assert_close(out, expected.flip(3) if flip else expected, rtol=0, atol=1e-4)
    expected_mask = masks[:, y : y + 6, x : x + 7]
    assert labels is not None
    assert torch.equal(labels, expected_mask.flip(2) if flip else expected_mask)


def test_beyond_the_image_is_black_and_ignored() -> None:
    images, masks = scene(3, 4)
    images += 1
    out, labels = SceneAugment(crop=(5, 6), scale=(1.0, 1.0), flip=False)(images, masks, draws(0, 0), 11)
    assert labels is not None
    assert torch.equal(labels[0, :3, :4], masks[0])
    assert torch.equal(labels[0, 3:].unique(), torch.tensor([11], dtype=torch.uint8))
    assert torch.equal(labels[0, :, 4:].unique(), torch.tensor([11], dtype=torch.uint8))
    assert out[:, :, 3:].abs().max() < 1e-4
    assert out[:, :, :3, :4].min() > 1e-3


def test_twice_the_scale_shows_every_label_four_times() -> None:
    images, masks = scene(4, 5)
    _, labels = SceneAugment(crop=(8, 10), scale=(2.0, 2.0), flip=False)(images, masks, draws(0, 0), 255)
    assert labels is not None
    assert torch.equal(labels[0], masks[0].repeat_interleave(2, 0).repeat_interleave(2, 1))


def test_half_the_scale_averages_pixels() -> None:
    images, masks = scene(8, 8)
    out, _ = SceneAugment(crop=(4, 4), scale=(0.5, 0.5), flip=False)(images, masks, draws(0, 0), 255)
    expected = torch.nn.functional.avg_pool2d(images.float() / 255, 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4)


def test_labels_are_never_mixed_and_stay_on_their_image() -> None:
    images = torch.zeros(16, 3, 20, 30, dtype=torch.uint8)
    masks = torch.zeros(16, 20, 30, dtype=torch.uint8)
    images[:, :, 5:15, 10:25], masks[:, 5:15, 10:25] = 255, 7
    out, labels = SceneAugment(crop=(16, 16))(images, masks, torch.rand(16, DRAWS), 255)
    assert labels is not None
    assert set(labels.unique().tolist()) <= {0, 7, 255}
    grey = out.mean(1)
    # More white than black: the white object. Less than the quarter that its very corner has: not the object.
    assert torch.equal(labels[grey > 0.51].unique(), torch.tensor([7], dtype=torch.uint8))
    assert not (labels[grey < 0.24] == 7).any()


def test_scale_spans_its_range() -> None:
    images, masks = torch.full((2, 3, 40, 40), 255, dtype=torch.uint8), torch.zeros(2, 40, 40, dtype=torch.uint8)
    table = torch.cat([draws(0, 0, scale=0.0), draws(0, 0, scale=1.0)])
    _, labels = SceneAugment(crop=(100, 100), flip=False)(images, masks, table, 255)
    assert labels is not None
    assert (labels == 0).sum((1, 2)).tolist() == [20 * 20, 80 * 80]


def test_fit_shows_the_whole_image_in_the_middle() -> None:
    images, masks = torch.full((1, 3, 10, 20), 255, dtype=torch.uint8), torch.zeros(1, 10, 20, dtype=torch.uint8)
    out, labels = Fit((40, 40))(images, masks, torch.rand(1, DRAWS), 255)
    assert labels is not None
    assert torch.equal(labels[0, 10:30].unique(), torch.tensor([0], dtype=torch.uint8))
    assert torch.equal(labels[0, :10].unique(), torch.tensor([255], dtype=torch.uint8))
    assert torch.equal(labels[0, 30:].unique(), torch.tensor([255], dtype=torch.uint8))
    assert out[0, :, 11:29, 1:-1].min() > 0.999
