"""Colour jitter agrees with kornia."""

import kornia.enhance
import torch

from deepshare.data import Jitter
from deepshare.data.colour import turn_hue

STILL = Jitter(0.2, 0.2, 0.2, 0.05)


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
