"""Classes have colours of their own, shares of the pixels, and a picture."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepshare.data.palette import class_shares, coloured, save_labels


def test_colours_of_all_classes_differ_and_no_class_is_black() -> None:
    colours = coloured(torch.arange(-1, 150)[None])
    assert colours.shape == (3, 1, 151) and colours.dtype == torch.uint8
    assert len(colours.flatten(1).T.unique(dim=0)) == 151
    assert colours[:, 0, 0].tolist() == [0, 0, 0]


def test_colours_depend_on_the_class_alone() -> None:
    classes = torch.randint(-1, 40, (6, 7))
    row = coloured(classes.flatten()[None]).reshape(3, 6, 7)
    assert torch.equal(coloured(classes), row)


def test_the_first_classes_are_far_apart() -> None:
    colours = coloured(torch.arange(-1, 11)[None]).flatten(1).T.double()
    distances = torch.cdist(colours, colours) + 1000 * torch.eye(12)
    assert distances.min() > 60


def test_shares_and_a_picture_of_the_classes(tmp_path: Path) -> None:
    labels = torch.tensor([[[0, 0, 2], [2, 2, 2]], [[1, 1, 1], [1, 1, 1]]])
    logits = torch.eye(3)[labels].movedim(-1, 1)
    found = class_shares(logits.argmax(1), ("sky", "road", "tree"))
    assert found == [{"tree": 4 / 6, "sky": 2 / 6}, {"road": 1.0}]
    assert list(found[0]) == ["tree", "sky"]
    save_labels(tmp_path / "labels.png", logits.argmax(1))
    with Image.open(tmp_path / "labels.png") as picture:
        assert np.array(picture).tolist() == labels.flatten(0, 1).tolist()
        seen = np.array(picture.convert("RGB")).reshape(-1, 3)
    assert len({tuple(colour) for colour in seen.tolist()}) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["labels.png"]
