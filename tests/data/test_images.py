from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from deepshare.data import ImageSet, check_classes, load
from deepshare.data.batching import batches
from deepshare.data.images import About, FileImages, cut
from deepshare.errors import DataError
from tests.data.layouts import tensor


def numbered(labels: list[int], classes: int) -> ImageSet:
    """A set whose image i has the value i."""
    images = torch.arange(len(labels)).to(torch.uint8).view(-1, 1, 1, 1)
    return ImageSet("numbered", images, torch.tensor(labels), tuple(map(str, range(classes))), (0.0,), (1.0,))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=100), st.floats(0, 0.99), st.integers(0, 5))
@example([0, 2, 2, 3, 2, 2, 1, 2], 0.375, 1)  # three of the five images of class 2
def test_cut_is_a_partition_with_every_class_in_proportion(labels: list[int], share: float, seed: int) -> None:
    whole = numbered(labels, 5)
    rest, part = cut(whole, share, seed)
    assert len(part) == int(share * len(labels) + 0.5)
    together = sorted(tensor(rest.images).flatten().tolist() + tensor(part.images).flatten().tolist())
    assert together == list(range(len(labels)))
    for image_set in (rest, part):
        places = tensor(image_set.images).flatten().tolist()
        assert places == sorted(places)
        assert tensor(image_set.labels).tolist() == [labels[place] for place in places]
    for label in set(labels):
        share_of_class = labels.count(label) / len(labels)
        exact = share_of_class * len(part)
        # Images of a class are evenly spaced, so half an image of each class may fall on either side of the cut.
        bound = (1 - share_of_class) / 2 + share_of_class * (len(set(labels)) - 1) / 2
        assert abs(tensor(part.labels).tolist().count(label) - exact) <= bound + 1e-9


def test_cut_depends_on_the_seed_alone() -> None:
    whole = numbered([0, 1] * 50, 2)
    first, again, other = (tensor(cut(whole, 20, seed)[1].images).flatten().tolist() for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("size", [101, -1, 1.0, 1.5])
def test_cut_refuses_impossible_sizes(size: float) -> None:
    with pytest.raises(DataError, match=f"cannot take {size} of 100 images"):
        cut(numbered([0, 1] * 50, 2), size, 0)


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="numbered: label 2 is out of range: with 2 classes"):
        numbered([0, 1, 2], 2)


def test_mask_label_out_of_range_is_refused_but_ignore_is_not() -> None:
    images, masks = torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([[[0, 1], [9, 0]]], dtype=torch.uint8)
    assert ImageSet("masks", images, masks, ("a", "b"), (0.0,), (1.0,), ignore=9).segmentation
    with pytest.raises(DataError, match="masks: label 9"):
        ImageSet("masks", images, masks, ("a", "b"), (0.0,), (1.0,), ignore=8)
    with pytest.raises(DataError, match="need an ignore label"):
        ImageSet("masks", images, masks, ("a", "b"), (0.0,), (1.0,))


def test_shapes_and_numbers_are_checked() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(DataError, match="3 images but 2 labels"):
        ImageSet("x", torch.zeros(3, 1, 2, 2, dtype=torch.uint8), labels, ("a",), (0.0,), (1.0,))
    with pytest.raises(DataError, match="must be uint8 of shape"):
        ImageSet("x", torch.zeros(2, 1, 2, 2), labels, ("a",), (0.0,), (1.0,))
    with pytest.raises(DataError, match=r"shape \(N, 1, H, W\)"):
        ImageSet("x", torch.zeros(2, 3, 2, 2, dtype=torch.uint8), labels, ("a",), (0.0,), (1.0,))


def test_class_count_is_compared_with_the_model() -> None:
    check_classes("digits", 10, 10)
    with pytest.raises(
        DataError,
        match=r"digits has 10 classes but the model has 100 outputs: build it with num_classes=10, .*num_classes 10",
    ):
        check_classes("digits", 10, 100)


def test_a_checksum_tells_images_labels_and_their_order_apart(tmp_path: Path) -> None:
    whole = numbered([0, 1, 1, 0], 2)
    order = torch.tensor([0, 1, 2, 3])
    assert whole.checksum() == whole.take(order).checksum() == numbered([0, 1, 1, 0], 3).checksum()
    assert len({whole.checksum(), whole.take(order[:3]).checksum(), whole.take(order.flip(0)).checksum()}) == 3
    assert numbered([0, 1, 1, 1], 2).checksum() != whole.checksum()
    wide = torch.zeros(2, 1, 1, 4, dtype=torch.uint8)
    shapes = [replace(whole, images=images, labels=torch.zeros(2).long()) for images in (wide, wide.view(2, 1, 4, 1))]
    assert shapes[0].checksum() != shapes[1].checksum()


def test_the_checksum_of_files_goes_by_name_and_size(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"123")
    read = FileImages((file,), lambda path: torch.zeros(1, 1, 1, dtype=torch.uint8))
    kept = replace(numbered([0], 1), images=read)
    before = kept.checksum()
    file.write_bytes(b"1234")
    assert kept.checksum() != before
    file.unlink()
    with pytest.raises(DataError, match=r"a\.png: No such file or directory: get the data set again"):
        kept.checksum()


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
