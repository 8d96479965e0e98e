"""Colours of classes in segmentation maps."""

import torch
from torch import Tensor

# Easy to distinguish; the first happen to suit CamVid: sky, brick, road, trees.
FIRST = torch.tensor(
    [
        (135, 197, 240),
        (166, 94, 60),
        (242, 209, 60),
        (118, 118, 130),
        (221, 173, 205),
        (63, 155, 69),
        (232, 80, 42),
        (107, 79, 179),
        (31, 87, 196),
        (232, 63, 154),
        (20, 184, 166),
    ],
    dtype=torch.uint8,
)
GOLDEN = 0.381966  # of the hue circle between two further classes


def coloured(classes: Tensor) -> Tensor:
    """Colour a map of classes (H, W) as uint8 (3, H, W); pixels without a class are black."""
    near = FIRST[classes.clamp(0, len(FIRST) - 1)].movedim(-1, 0)
    return torch.where((classes >= 0) & (classes < len(FIRST)), near, _turned(classes))


def _turned(classes: Tensor) -> Tensor:
    """Return any number of colours, with distant hues for consecutive classes."""
    hue = (classes * GOLDEN).frac() * 6
    shift = torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1)
    turned = (hue + shift) % 6
    value = 1 - 0.65 * torch.minimum(turned, 4 - turned).clamp(0, 1)
    light = torch.where(classes >= 0, 0.6 + 0.4 * ((classes * 7) % 5) / 4, 0.0)
    return (255 * value * light).to(torch.uint8)
