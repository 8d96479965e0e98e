"""Section of sample predictions: test images with predicted classes, or with masks for segmentation."""

import base64
import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepshare.data.palette import coloured
from deepshare.study.report.markup import Child, Node, node, section
from deepshare.study.samples import Sample, Samples, Scene

TITLE = "Sample predictions"
LARGEST = 240  # pixels of the longer side of a picture


def predictions_section(samples: Samples | str) -> Node:
    """Section of pictures, or the reason why there are none."""
    if isinstance(samples, str):
        return section(TITLE, samples)
    if samples.scenes:
        about = f"{len(samples.scenes)} test images, evenly spaced among all of them."
        return section(TITLE, about, _classes(samples), *map(_scene, samples.scenes))
    right = samples.looked - samples.wrong
    answers = "Below each: the prediction and the next most likely classes."
    about = f"Of the first {samples.looked:,} test images {right:,} are right. {answers}"
    parts: list[Child] = [node("h4", f"The first {len(samples.first)}"), _cards(samples.first)]
    if samples.mistakes:
        every = "All" if samples.wrong == len(samples.mistakes) else f"{len(samples.mistakes)} of"
        several = f"{every} its {samples.wrong} mistakes, most confident first"
        parts += [node("h4", several if samples.wrong > 1 else "Its only mistake"), _cards(samples.mistakes)]
    return section(TITLE, about, *parts)


def _cards(samples: Sequence[Sample]) -> Node:
    return node("div", *map(_card, samples), class_="cards")


def _card(sample: Sample) -> Node:
    (guess, sure), *others = sample.guesses
    verdict = "right" if sample.right else "wrong"
    truth = None if sample.right else node("div", "is ", node("b", _plain(sample.truth)), class_="truth")
    return node(
        "figure",
        node("img", src=_url(sample.image), alt=f"test image {sample.number}: {sample.truth}"),
        node(
            "figcaption",
            node("div", node("b", _plain(guess)), f" {sure:.1%}", class_="guess"),
            node("span", node("span", class_="fill", style=f"width:{100 * sure:.1f}%"), class_="bar"),
            truth,
            *(node("div", node("span", _plain(name)), node("span", f"{p:.1%}"), class_="other") for name, p in others),
        ),
        class_=f"card {verdict}",
    )


def _plain(name: str) -> str:
    """Name of a class with spaces."""
    return name.replace("_", " ")


def _scene(scene: Scene) -> Node:
    found = scene.found.masked_fill(scene.truth < 0, -1)  # unlabelled pixels are not evaluated
    named = ((scene.image, "image"), (coloured(scene.truth), "truth"), (coloured(found), "predicted"))
    shown = (
        node("div", node("b", what), node("img", src=_url(image), alt=f"test image {scene.number}: {what}"))
        for image, what in named
    )
    caption = node("figcaption", f"test image {scene.number}: {scene.accuracy:.1%} of its labelled pixels right")
    return node("figure", *shown, caption, class_="scene")


def _classes(samples: Samples) -> Node:
    """Colour keys of the classes that occur, and of no class."""
    numbers = torch.cat([torch.stack([scene.truth, scene.found]).flatten() for scene in samples.scenes]).unique()
    ordered = torch.cat([numbers[numbers >= 0], numbers[numbers < 0]])
    names = ["no class" if number < 0 else samples.classes[number] for number in ordered.tolist()]
    colours = coloured(ordered[None])[:, 0].T.tolist()
    keys = (
        node("span", node("i", class_="key class", style=f"background:rgb({r},{g},{b})"), name)
        for name, (r, g, b) in zip(names, colours, strict=True)
    )
    return node("p", *keys, class_="legend")


def _url(image: Tensor) -> str:
    """Encode a uint8 image (C, H, W) as a PNG data URL."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array))
    picture.thumbnail((LARGEST, LARGEST))
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
