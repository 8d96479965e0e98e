"""Test images with what a network makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.data import ImageSet, Transform, batches, load
from deepshare.training.data_source import transforms
from deepshare.training.recipe.files import Recipe

LOOKED, SHOWN, SCENES, GUESSES = 256, 12, 3, 3


@dataclass(frozen=True)
class Examples:
    """The test images of a data set, and how they are prepared."""

    images: ImageSet
    prepare: Transform | None


@dataclass(frozen=True, eq=False)
class Sample:
    """One image with its class and the likeliest guesses, best first.

    Attributes:
        number: Its place among the test images.
        image: uint8 (C, H, W).
        truth: Its class.
        guesses: Classes with their probabilities.
    """

    number: int
    image: Tensor
    truth: str
    guesses: tuple[tuple[str, float], ...]

    @property
    def right(self) -> bool:
        """Whether the best guess is the class."""
        return self.guesses[0][0] == self.truth

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the image."""
        return {"number": self.number, "truth": self.truth, "guesses": [list(guess) for guess in self.guesses]}


@dataclass(frozen=True, eq=False)
class Scene:
    """One image with the classes of its pixels, (H, W), as they are and as they are predicted; -1 is no class."""

    number: int
    image: Tensor
    truth: Tensor
    found: Tensor

    @property
    def accuracy(self) -> float:
        """Share of the labelled pixels whose class is right."""
        known = self.truth >= 0
        return float((self.found == self.truth)[known].double().mean())

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the images."""
        return {"number": self.number, "accuracy": self.accuracy}


@dataclass(frozen=True, eq=False)
class Samples:
    """What was looked at.

    Attributes:
        looked: How many test images: from the first on, or for segmentation evenly spaced among all.
        wrong: How many of them the network mistakes.
        first: The first of them.
        mistakes: The mistakes that it is surest of.
        scenes: For segmentation, in the place of the others.
        classes: The names of all classes.
    """

    looked: int
    wrong: int = 0
    first: tuple[Sample, ...] = ()
    mistakes: tuple[Sample, ...] = ()
    scenes: tuple[Scene, ...] = ()
    classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        shown = {key: [one.to_dict() for one in getattr(self, key)] for key in ("first", "mistakes", "scenes")}
        return {"looked": self.looked, "wrong": self.wrong, **shown}


def open_images(recipe: Recipe, data_dir: Any) -> Examples:
    """Find the test images of a recipe.

    Raises:
        DataError: They are not there.
    """
    wanted = recipe.data
    images = load(wanted.name, data_dir, validation=wanted.validation, image_size=wanted.image_size).test
    return Examples(images, transforms(images, wanted)[1])


@torch.no_grad()
def look(network: nn.Module, source: Examples) -> Samples:
    """Show a network some test images."""
    test = source.images
    if test.segmentation:
        scenes = look_at(network, source, spaced(len(test), SCENES))
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


def spaced(count: int, wanted: int) -> Sequence[int]:
    """Places that are evenly spaced among so many, as neighbours of one film look alike; all, if there are fewer.

    >>> spaced(233, 3)
    [38, 116, 194]
    """
    if wanted >= count:
        return range(count)
    return [(2 * place + 1) * count // (2 * wanted) for place in range(wanted)]


@torch.no_grad()
def look_at(network: nn.Module, source: Examples, places: Sequence[int]) -> tuple[Scene, ...]:
    """Show a network for segmentation the test images at some places."""
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
    """What was normalised, as it was."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (test.mean, test.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
