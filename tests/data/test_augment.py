import kornia.enhance
import pytest
import torch
from torch import Tensor

from deepshare.data import Augment, Jitter
from deepshare.data.augment import DRAWS
from deepshare.data.colour import turn_hue
from deepshare.errors import DataError

STILL = Jitter(0.2, 0.2, 0.2, 0.05)


def pictures(count: int, channels: int = 3, size: int = 6) -> Tensor:
    return torch.randint(1, 256, (count, channels, size, size), dtype=torch.uint8)


def draws(count: int, **columns: float) -> Tensor:
    names = ("y", "x", "flip", "brightness", "contrast", "saturation", "hue", "scale")
    table = torch.full((count, DRAWS), 0.5)
    for name, value in columns.items():
        table[:, names.index(name)] = value
    return table


def test_nothing_asked_nothing_done() -> None:
    images = pictures(4)
    out, masks = Augment()(images, None, torch.rand(4, DRAWS), 0)
    assert torch.equal(out, images.float() / 255)
    assert masks is None


@pytest.mark.parametrize(("y", "x"), [(0, 0), (0, 4), (2, 2), (3, 1), (4, 4)])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_shows_the_padded_image_from_the_drawn_place(y: int, x: int, flip: bool) -> None:
    images = pictures(3)
    place = draws(3, y=(y + 0.5) / 5, x=(x + 0.5) / 5, flip=0.9 if flip else 0.1)
    out, _ = Augment(crop_padding=2, flip=True)(images, None, place, 0)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    expected = padded[:, :, y : y + 6, x : x + 6]
    assert torch.equal(out * 255, (expected.flip(3) if flip else expected).float())


def test_every_image_goes_by_its_own_draws() -> None:
    images, place = pictures(16), torch.rand(16, DRAWS)
    augment = Augment(crop_padding=2, flip=True, jitter=STILL)
    together, _ = augment(images, None, place, 0)
    for index in range(16):
        alone, _ = augment(images[index : index + 1], None, place[index : index + 1], 0)
        torch.testing.assert_close(alone[0], together[index], rtol=0, atol=1e-6)


def test_all_places_and_both_sides_are_drawn_equally_often() -> None:
    images = torch.zeros(20_000, 1, 3, 3, dtype=torch.uint8)
    images[:, :, 1, 1] = 255
    out, _ = Augment(crop_padding=1)(images, None, torch.rand(20_000, DRAWS), 0)
    share = out.mean((0, 1))
    assert share.sub(1 / 9).abs().max() < 0.01
    images = torch.zeros(20_000, 1, 1, 2, dtype=torch.uint8)
    images[:, :, 0, 0] = 255
    out, _ = Augment(flip=True)(images, None, torch.rand(20_000, DRAWS), 0)
    assert out.mean((0, 1, 2)).sub(0.5).abs().max() < 0.02


def test_moving_an_image_without_its_mask_is_refused() -> None:
    masks = torch.zeros(2, 6, 6, dtype=torch.uint8)
    with pytest.raises(DataError, match="SceneAugment moves a mask"):
        Augment(flip=True)(pictures(2), masks, draws(2), 255)
    assert Augment(jitter=STILL)(pictures(2), masks, draws(2), 255)[1] is masks


def test_middling_draws_change_no_colour() -> None:
    images = torch.rand(4, 3, 5, 5)
    torch.testing.assert_close(STILL(images, torch.full((4, 4), 0.5)), images, rtol=0, atol=1e-6)


def test_each_change_is_what_kornia_computes() -> None:
    # Away from black and white, so that nothing is clipped half-way.
    images, amount = torch.rand(32, 3, 8, 8) * 0.5 + 0.25, torch.rand(32)
    factor = 1 + 0.2 * (2 * amount - 1)
    expected = {
        0: kornia.enhance.adjust_contrast(images, factor),
        1: kornia.enhance.adjust_contrast_with_mean_subtraction(images, factor),
        2: kornia.enhance.adjust_saturation_with_gray_subtraction(images, factor),
        3: kornia.enhance.adjust_hue(images, 2 * torch.pi * 0.05 * (2 * amount - 1)),
    }
    for column, reference in expected.items():
        table = torch.full((32, 4), 0.5)
        table[:, column] = amount
        torch.testing.assert_close(STILL(images, table), reference, rtol=0, atol=2e-6)


def test_all_changes_together_are_kornias_one_after_the_other() -> None:
    images, table = torch.rand(32, 3, 8, 8) * 0.4 + 0.3, torch.rand(32, 4)
    factors = 1 + 0.2 * (2 * table[:, :3] - 1)
    reference = kornia.enhance.adjust_saturation_with_gray_subtraction(images, factors[:, 2])
    reference = kornia.enhance.adjust_contrast(reference, factors[:, 0])
    reference = kornia.enhance.adjust_contrast_with_mean_subtraction(reference, factors[:, 1])
    reference = kornia.enhance.adjust_hue(reference, 2 * torch.pi * 0.05 * (2 * table[:, 3] - 1))
    torch.testing.assert_close(STILL(images, table), reference, rtol=0, atol=5e-6)


def test_turning_the_hue() -> None:
    red = torch.tensor([0.8, 0.2, 0.2]).view(1, 3, 1, 1)
    green, blue = red[:, [1, 0, 2]], red[:, [1, 2, 0]]
    torch.testing.assert_close(turn_hue(red, torch.tensor([1 / 3])), green)
    torch.testing.assert_close(turn_hue(red, torch.tensor([-1 / 3])), blue)
    torch.testing.assert_close(turn_hue(blue, torch.tensor([1 / 3])), red)
    grey = torch.full((2, 3, 2, 2), 0.37)
    assert torch.equal(turn_hue(grey, torch.tensor([0.1, -0.5])), grey)
    images = torch.rand(8, 3, 4, 4)
    torch.testing.assert_close(turn_hue(images, torch.ones(8)), images, rtol=0, atol=1e-6)


def test_colours_stay_between_black_and_white() -> None:
    images = torch.randint(0, 2, (64, 3, 4, 4)).float()
    out = Jitter(0.9, 0.9, 0.9, 0.5)(images, torch.rand(64, 4))
    assert out.min() >= 0
    assert out.max() <= 1


def test_one_channel_knows_brightness_and_contrast_only() -> None:
    images, table = torch.rand(4, 1, 5, 5) * 0.4 + 0.3, torch.rand(4, 4)
    factors = (1 + 0.2 * (2 * table[:, :2] - 1)).view(4, 2, 1, 1, 1)
    bright = images * factors[:, 0]
    expected = factors[:, 1] * bright + (1 - factors[:, 1]) * bright.mean((2, 3), keepdim=True)
    torch.testing.assert_close(STILL(images, table), expected, rtol=0, atol=1e-6)
