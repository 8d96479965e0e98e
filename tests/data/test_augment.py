import pytest
import torch
from torch import Tensor

from deepshare.data import Augment, Jitter
from deepshare.data.augment import DRAWS
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
