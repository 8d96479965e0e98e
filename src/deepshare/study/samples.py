"""Sample predictions: test images of finished runs with the outputs of their networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.data.augment import Transform
from deepshare.data.batching import batches
from deepshare.data.catalog import load
from deepshare.data.images import ImageSet
from deepshare.errors import CheckpointError
from deepshare.training.build import check_finished
from deepshare.training.data_source import transforms
from deepshare.training.recipe.files import Recipe
from deepshare.training.run.folder import RunFolder

LOOKED, SHOWN, SCENES, GUESSES = 256, 12, 3, 3


@dataclass(frozen=True)
class Examples:
    """Test images of a data set, with the transform that prepares them."""

    images: ImageSet
    prepare: Transform | None


@dataclass(frozen=True, eq=False)
class Sample:
    """An image with its class and the most likely predictions.

    Attributes:
        number: Index among the test images.
        image: uint8 (C, H, W).
        truth: The class.
        guesses: Predicted classes with their probabilities, best first.
    """

    number: int
    image: Tensor
    truth: str
    guesses: tuple[tuple[str, float], ...]

    @property
    def right(self) -> bool:
        """True if the first prediction is correct."""
        return self.guesses[0][0] == self.truth

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON, without the image."""
        return {"number": self.number, "truth": self.truth, "guesses": [list(guess) for guess in self.guesses]}


@dataclass(frozen=True, eq=False)
class Scene:
    """An image with the true and the predicted classes of its pixels, (H, W); -1 is no class."""

    number: int
    image: Tensor
    truth: Tensor
    found: Tensor

    @property
    def accuracy(self) -> float:
        """Share of the labelled pixels that are classified correctly."""
        known = self.truth >= 0
        return float((self.found == self.truth)[known].double().mean())

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON, without the images."""
        return {"number": self.number, "accuracy": self.accuracy}


@dataclass(frozen=True, eq=False)
class Samples:
    """Predictions on a sample of the test images.

    Attributes:
        looked: Number of test images: the first ones, or for segmentation evenly spaced among all.
        wrong: Number of images that the network gets wrong.
        first: The first images.
        mistakes: The most confident mistakes.
        scenes: Images of segmentation, in place of the two above.
        classes: Names of all classes.
    """

    looked: int
    wrong: int = 0
    first: tuple[Sample, ...] = ()
    mistakes: tuple[Sample, ...] = ()
    scenes: tuple[Scene, ...] = ()
    classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        shown = {key: [one.to_dict() for one in getattr(self, key)] for key in ("first", "mistakes", "scenes")}
        return {"looked": self.looked, "wrong": self.wrong, **shown}


def check_run(path: Path) -> None:
    """Check that a folder holds a finished run; nothing else is read.

    Raises:
        CheckpointError: It does not.
    """
    folder = RunFolder(path)
    check_finished(folder)
    if not folder.result.is_file():
        raise CheckpointError(
            f"{path} has no result.json, so it is a part of a run or not finished: give the folder of a finished run"
        )


def open_images(recipe: Recipe, data_dir: Path | None) -> Examples:
    """Open the test images of a recipe.

    Raises:
        DataError: The data set is missing or damaged.
    """
    wanted = recipe.data
    images = load(wanted.name, data_dir, validation=wanted.validation, image_size=wanted.image_size).test
    return Examples(images, transforms(images, wanted)[1])


@torch.no_grad()
def predict_samples(network: nn.Module, source: Examples) -> Samples:
    """Run a network on a sample of the test images."""
    test = source.images
    if test.segmentation:
        scenes = predict_scenes(network, source, evenly_spaced(len(test), SCENES))
        return Samples(len(scenes), scenes=scenes, classes=test.classes)
    images, labels = next(iter(batches(test, LOOKED, augment=source.prepare)))
    likely = torch.cat([network(part) for part in images.split(32)]).double().softmax(1)
    pictures = _pictures(images, test)
    samples = [
        _sample(number, pictures[number], test.classes, int(labels[number]), likely[number])
        for number in range(len(images))
    ]
    wrong = sorted((one for one in samples if not one.right), key=lambda one: -one.guesses[0][1])
    return Samples(len(samples), len(wrong), tuple(samples[:SHOWN]), tuple(wrong[:SHOWN]), classes=test.classes)


def evenly_spaced(count: int, wanted: int) -> Sequence[int]:
    """Indices that are evenly spaced in `range(count)`, since neighbouring frames look alike; all, if there are fewer.

    >>> evenly_spaced(233, 3)
    [38, 116, 194]
    """
    if wanted >= count:
        return range(count)
    return [(2 * place + 1) * count // (2 * wanted) for place in range(wanted)]


@torch.no_grad()
def predict_scenes(network: nn.Module, source: Examples, places: Sequence[int]) -> tuple[Scene, ...]:
    """Run a segmentation network on the test images with the given indices."""
    test = source.images.take(torch.tensor(places))
    images, labels = next(iter(batches(test, len(test), augment=source.prepare)))
    truth = labels.masked_fill(labels == (-1 if test.ignore is None else test.ignore), -1)
    found = torch.cat([network(part).argmax(1) for part in images.split(4)])
    parts = zip(places, _pictures(images, test), truth, found, strict=True)
    return tuple(Scene(number, *tensors) for number, *tensors in parts)


def _sample(number: int, image: Tensor, classes: Sequence[str], label: int, likely: Tensor) -> Sample:
    best = likely.topk(min(GUESSES, len(classes)))
    guesses = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Sample(number, image, classes[label], tuple((classes[place], value) for place, value in guesses))


def _pictures(images: Tensor, test: ImageSet) -> Tensor:
    """Undo the normalisation."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (test.mean, test.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
