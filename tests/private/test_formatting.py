from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepshare.private.formatting import class_shares, save_labels


def test_shares_and_a_picture_of_the_classes(tmp_path: Path) -> None:
    labels = torch.tensor([[[0, 0, 2], [2, 2, 2]], [[1, 1, 1], [1, 1, 1]]])
    logits = torch.eye(3)[labels].movedim(-1, 1)
    found = class_shares(logits, ("sky", "road", "tree"))
    assert found == [{"tree": 4 / 6, "sky": 2 / 6}, {"road": 1.0}]
    assert list(found[0]) == ["tree", "sky"]
    save_labels(tmp_path / "labels.png", logits)
    with Image.open(tmp_path / "labels.png") as picture:
        assert np.array(picture).tolist() == labels.flatten(0, 1).tolist()
        seen = np.array(picture.convert("RGB")).reshape(-1, 3)
    assert len({tuple(colour) for colour in seen.tolist()}) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["labels.png"]
