"""Maps of classes of a segmentation network: in colours, as shares of the pixels and as a picture."""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from deepshare.files import write_atomically

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


def class_shares(labels: Tensor, classes: Sequence[str]) -> list[dict[str, float]]:
    """The fraction of the pixels of each class that occurs in an image, the largest first.

    Args:
        labels: Classes of pixels, (N, H, W).
        classes: Their names.
    """
    return [_shares(one, classes) for one in labels]


def _shares(labels: Tensor, classes: Sequence[str]) -> dict[str, float]:
    counts = torch.bincount(labels.flatten(), minlength=len(classes))
    order = counts.argsort(descending=True, stable=True).tolist()
    return {classes[place]: int(counts[place]) / labels.numel() for place in order if counts[place]}


def save_labels(path: Path, labels: Tensor) -> None:
    """Write classes of pixels (N, H, W) as a PNG, of several images one below the other.

    The values in the file are the numbers of the classes, as in the masks of data sets; its palette makes them visible.
    """
    picture = Image.fromarray(labels.flatten(0, 1).to(torch.uint8).numpy()).convert("P")
    picture.putpalette(coloured(torch.arange(256)[None])[:, 0].T.flatten().tolist())
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    write_atomically(path, written.getvalue())
