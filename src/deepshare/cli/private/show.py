"""Output of `deepshare private`: notes on stderr, then classes and cost of an inference."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepshare.cli.options import check_writable
from deepshare.errors import EngineError

if TYPE_CHECKING:
    from deepshare.private.cost import Result
    from deepshare.private.ir.program import Program
    from deepshare.private.runtime.engine import Engine


LARGE_DISTANCE = 2.0**-10
"""Bound of the statistical distance of all views together from which on users are warned."""


def note(text: str) -> None:
    """Print a note to stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(engine: "Engine") -> None:
    """Print the trust assumptions of an engine."""
    note(f"{engine.name}: {engine.trust}")


def show_distance(distance: float, images: int, whose: str) -> None:
    """Print the bound of what the server's views tell, of an image and of all, and warn of a large one."""
    print(
        f"statistical distance of the server's views of any two images: below 2^{math.log2(distance):.1f}; of all "
        f"{whose}: below 2^{math.log2(distance * images):.1f}"
    )
    if distance * images > LARGE_DISTANCE:
        note(
            f"warning: the bound of all {whose} is above 2^{math.log2(LARGE_DISTANCE):.0f}: "
            "give a client fewer images, or take spu-cheetah, which discards no lots"
        )


def note_answer(program: "Program") -> None:
    """Print what a server gives, where it is not logits."""
    if program.hides_scores:
        places = program.operations[-1].shape[0]
        said = "the class alone" if places == 1 else f"the {places} best classes alone"
        note(f"the server gives {said}, without logits")


def check_out(out: Path | None, program: "Program") -> None:
    """Check before any work that the network segments and that the file can be written."""
    if out is None:
        return
    if len(program.operations[-1].shape) == 1:
        raise EngineError("--out is for segmentation, but this network gives one class per image: omit it")
    check_writable(out)


def show(
    result: "Result",
    class_names: Sequence[str],
    names: list[str],
    layers: bool,
    as_json: bool,
    out: Path | None = None,
) -> None:
    """Print the classes, with probabilities or fractions of the pixels, and the cost."""
    from deepshare.data.palette import save_labels
    from deepshare.private.cost import cost_dict, cost_table

    if out is not None:
        save_labels(out, result.classes[:, 0])
    found = _pixels(result, class_names, names) if result.answer.dim() > 2 else _classes(result, class_names, names)
    if as_json:
        print(json.dumps({"images": found, "cost": cost_dict(result.cost)}))
        return
    width = max(len(entry["image"]) for entry in found)
    for entry in found:
        print(f"{entry['image']:{width}}  {_said(entry)}")
    print()
    print(cost_table(result.cost, layers=layers))
    each = result.cost.seconds / result.cost.images
    error = "" if result.cost.error is None else f"; largest error of a logit {result.cost.error:.1e}"
    many = "1 image" if result.cost.images == 1 else f"{result.cost.images} images, {each:.3f} s each"
    print(f"\n{result.cost.seconds:.3f} s online for {many}{error}")
    if out is not None:
        print(f"classes of the pixels in {out}")


def _said(entry: dict[str, Any]) -> str:
    if "probability" in entry:
        return f"{entry['class']}  {entry['probability']:.1%}"
    if "classes" in entry:
        return ", ".join(entry["classes"])
    return ", ".join(f"{name} {share:.1%}" for name, share in entry["pixels"].items())


def _pixels(result: "Result", class_names: Sequence[str], names: list[str]) -> list[dict[str, Any]]:
    from deepshare.data.palette import class_shares

    found = class_shares(result.classes[:, 0], class_names)
    return [{"image": name, "pixels": pixels} for name, pixels in zip(names, found, strict=True)]


def _classes(result: "Result", class_names: Sequence[str], names: list[str]) -> list[dict[str, Any]]:
    if result.hides_scores:
        best = [[class_names[index] for index in indices] for indices in result.classes.tolist()]
        return [{"image": name, "class": some[0], "classes": some} for name, some in zip(names, best, strict=True)]
    likely = result.logits.double().softmax(1).max(1)
    return [
        {"image": name, "class": class_names[index], "probability": probability}
        for name, probability, index in zip(names, likely.values.tolist(), likely.indices.tolist(), strict=True)
    ]
