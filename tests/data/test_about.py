from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from deepshare.data import load
from deepshare.data.about import About
from deepshare.data.batches import batches
from deepshare.errors import DataError


def about(channels: int = 3) -> About:
    return About(size=(channels, 4, 6), mean=(0.5,) * channels, std=(0.25,) * channels, classes=("a", "b"))


def test_a_test_image_saved_as_a_picture_is_what_the_network_was_tested_on(tmp_path: Path) -> None:
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    Image.fromarray(test.images[7, 0].numpy()).save(tmp_path / "7.png")
    read = About.of(test, (1, 8, 8)).read([tmp_path / "7.png"])
    images, _ = next(iter(batches(test, 8)))
    torch.testing.assert_close(read[0], images[7])


def test_channels_rows_and_columns_keep_their_places(tmp_path: Path) -> None:
    picture = Image.new("RGB", (6, 4))
    picture.putpixel((5, 1), (255, 0, 51))
    picture.save(tmp_path / "p.png")
    read = about().read([tmp_path / "p.png"])
    assert read.shape == (1, 3, 4, 6)
    torch.testing.assert_close(read[0, :, 1, 5], (torch.tensor([1.0, 0.0, 0.2]) - 0.5) / 0.25)


def test_another_size_is_refused_or_fitted(tmp_path: Path) -> None:
    Image.new("L", (12, 9)).save(tmp_path / "p.png")
    with pytest.raises(DataError, match=r"p\.png has 12x9 pixels but the network takes 6x4: .*--fit"):
        about().read([tmp_path / "p.png"])
    assert about().read([tmp_path / "p.png"], fit=True).shape == (1, 3, 4, 6)


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_text("no picture")
    with pytest.raises(DataError, match=r"p\.png: damaged or no image"):
        about(1).read([tmp_path / "p.png"])
    with pytest.raises(DataError, match=r"q\.png: is missing"):
        about(1).read([tmp_path / "q.png"])
    with pytest.raises(DataError, match="is a folder: give the pictures in it"):
        about(1).read([tmp_path])


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValidationError, match="one or of three channels"):
        About(size=(2, 4, 6), mean=(0.5, 0.5), std=(1, 1), classes=())
    with pytest.raises(ValidationError, match="one or of three channels"):
        About(size=(3, 4, 6), mean=(0.5,), std=(1, 1, 1), classes=())
