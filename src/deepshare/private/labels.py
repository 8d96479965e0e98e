"""The answer of a network for segmentation: which classes a picture shows, and where."""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from deepshare.data.palette import coloured
from deepshare.files import write_atomically


def shares(logits: Tensor, classes: Sequence[str]) -> list[dict[str, float]]:
    """The share of the pixels of each class that occurs in an image, the largest first.

    Args:
        logits: (N, classes, H, W).
        classes: Their names.
    """
    return [_shares(labels, classes) for labels in logits.argmax(1)]


def _shares(labels: Tensor, classes: Sequence[str]) -> dict[str, float]:
    counts = torch.bincount(labels.flatten(), minlength=len(classes))
    order = counts.argsort(descending=True, stable=True).tolist()
    return {classes[place]: int(counts[place]) / labels.numel() for place in order if counts[place]}


def save_labels(path: Path, logits: Tensor) -> None:
    """Write the classes as a PNG, of several images one below the other.

    The values in the file are the numbers of the classes, as in the masks of data sets; its palette makes them visible.
    """
    labels = logits.argmax(1).flatten(0, 1).to(torch.uint8)
    picture = Image.fromarray(labels.numpy()).convert("P")
    picture.putpalette(coloured(torch.arange(256)[None])[:, 0].T.flatten().tolist())
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    write_atomically(path, written.getvalue())
