"""Origin of the gates that rounding flips in private inference, for a trained shared network on its test images.

    python benchmarks/flips.py results/camvid-small/gates-3 --images 8 --data-dir DIR
    python benchmarks/flips.py RUN --images 1 --data-dir DIR --json

Evaluates the network in the clear with gateshare's number format: all of its numbers rounded, one kind of them, or all
to more bits. What the protocol truncates is rounded up or down at random, as there. Beside each format stand the shares
of an image that the client would have to discard (above 2 the engine refuses a network), flipped gates, in all and by
group, and the share of classes that agree with the exact network and with the labels. The second table is of exact
arithmetic with one gate of each image flipped by hand: of a group the gate nearest to zero.
"""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from deepshare.data.batching import batches
from deepshare.private.api import from_run
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.ir.program import Convolution, Gates, Linear, Program, Resample, SharedActivation
from deepshare.text import table
from deepshare.training.data_source import make_data_source
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder

FINER = (2, 4, 6)
UNKNOWN = -1


@dataclass(frozen=True)
class Bits:
    """Fractional bits of each kind of number; None leaves it as it is."""

    activations: int | None = None
    weights: int | None = None
    affine: int | None = None

    def __str__(self) -> str:
        return ", ".join("-" if bits is None else str(bits) for bits in (self.activations, self.weights, self.affine))


@dataclass(frozen=True)
class Flips:
    """A way to evaluate a network, and what it changes.

    Attributes:
        name: The numbers that are rounded, or the site with a flipped gate.
        bits: Fractional bits of activations, of weights, and of alpha and beta.
        unsafe: Shares of an image that could not be truncated, if gateshare had this format.
        by_group: Flipped gates of each group.
        same: Share of classes that are those of the exact network.
        right: Share of classes that are right.
    """

    name: str
    bits: str
    unsafe: float | None
    by_group: list[int]
    same: float
    right: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="two images: to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.images = 2
    program, _ = from_run(options.run)
    feed = make_data_source(None, load_recipe(RunFolder(options.run).recipe), options.data_dir)
    if feed.test_set is None:
        parser.error("the data set of this run has no test images")
    images, labels = next(iter(batches(feed.test_set, options.images, augment=feed.prepare)))
    images = images.double()
    if feed.test_set.ignore is not None:
        labels = labels.masked_fill(labels == feed.test_set.ignore, UNKNOWN)
    rows, by_hand = by_format(program, images, labels), by_gate(program, images, labels)
    figures = {"images": len(images), "classified": labels.numel(), "gates": len(images) * program.comparisons}
    if options.json:
        made = {"rows": [asdict(row) for row in rows], "one_gate": [asdict(row) for row in by_hand]}
        print(json.dumps(figures | made, indent=1))
        return
    print(", ".join(f"{count:,} {name}" for name, count in figures.items()), end="\n\n")
    print(listed(rows, "rounded"), listed(by_hand, "one gate flipped at"), sep="\n\n")


def by_format(program: Program, images: Tensor, labels: Tensor) -> list[Flips]:
    """Flips of every number format."""
    number_format = calibrate(program)
    unsafe = schedule(program, number_format).unsafe_shares
    activations, weights, affine = number_format.fraction, number_format.weight, number_format.affine
    formats: dict[str, tuple[Bits, float | None]] = {
        "nothing": (Bits(), None),
        "everything, as gateshare does": (Bits(activations, weights, affine), unsafe),
        "activations": (Bits(activations=activations), None),
        "weights": (Bits(weights=weights), None),
        "alpha and beta": (Bits(affine=affine), None),
    }
    for more in FINER:
        # A truncated number has the bits of two kinds, so each bit more makes four times as many shares unsafe.
        bits = Bits(activations + more, weights + more, affine + more)
        formats[f"everything, {more} bits finer"] = bits, unsafe * 4**more
    exact = evaluate(program, images)
    rows = [
        compared(name, evaluate(program, images, bits), exact, labels, bits, unsafe)
        for name, (bits, unsafe) in formats.items()
    ]
    single = compared("nothing, in float32", evaluate(program, images.float()), exact, labels)
    return [rows[0], single, *rows[1:]]


def by_gate(program: Program, images: Tensor, labels: Tensor) -> list[Flips]:
    """What one flipped gate leads to, by the group that it belongs to."""
    exact = evaluate(program, images)
    return [
        compared(program.operations[leader].name, evaluate(program, images, flip=leader), exact, labels)
        for leader in exact[1]
    ]


def compared(
    name: str,
    found: tuple[Tensor, Gates],
    exact: tuple[Tensor, Gates],
    labels: Tensor,
    bits: Bits | None = None,
    unsafe: float | None = None,
) -> Flips:
    """Compare logits and gates with the exact ones, and classes with the labels where there are any."""
    classes, known = found[0].argmax(1), labels != UNKNOWN
    return Flips(
        name=name,
        bits=str(bits or Bits()),
        unsafe=unsafe,
        by_group=[int((found[1][leader] != gates).sum()) for leader, gates in exact[1].items()],
        same=float((classes == exact[0].argmax(1)).double().mean()),
        right=float((classes == labels)[known].double().mean()),
    )


def evaluate(
    program: Program, images: Tensor, bits: Bits | None = None, flip: int | None = None
) -> tuple[Tensor, Gates]:
    """Evaluate a program with rounded numbers in the precision of its images, or with one gate of a leader flipped.

    Returns:
        Logits, and gates by leader.
    """
    bits, generator = bits or Bits(), torch.Generator().manual_seed(0)
    gates: Gates = {}
    values: list[Tensor] = []
    for number, operation in enumerate(program.operations):
        inputs = [values[source] for source in operation.inputs] or [images]
        match operation:
            case Convolution() | Linear():
                weight = nearest(operation.weight, bits.weights).to(images)
                operation = replace(operation, weight=weight, bias=operation.bias.to(images))
            case SharedActivation():
                alpha, beta = (nearest(part, bits.affine).to(images) for part in (operation.alpha, operation.beta))
                operation = replace(operation, alpha=alpha, beta=beta)
                inputs = [flipped(inputs[0], operation.prototypes)] if number == flip else inputs
            case Resample():
                operation = replace(operation, rows=operation.rows.to(images), columns=operation.columns.to(images))
        value = operation.evaluate(inputs, gates)
        truncated = isinstance(operation, Convolution | Linear | SharedActivation)
        values.append(up_or_down(value, bits.activations, generator) if truncated else value)
    return values[-1], gates


def nearest(values: Tensor, bits: int | None) -> Tensor:
    """Round to the nearest."""
    return values if bits is None else (values * 2.0**bits).round() / 2.0**bits


def up_or_down(values: Tensor, bits: int | None, generator: torch.Generator) -> Tensor:
    """Round at random, to what is rounded in the mean."""
    if bits is None:
        return values
    return (values * 2.0**bits + torch.rand(values.shape, generator=generator, dtype=values.dtype)).floor() / 2.0**bits


def flipped(x: Tensor, prototypes: int) -> Tensor:
    """Change the sign of the number of each image that is nearest to zero among its prototypes."""
    x = x.clone()
    first = x[:, :prototypes].flatten(1)
    place = first.abs().argmin(1, keepdim=True)
    x[:, :prototypes] = first.scatter(1, place, -first.gather(1, place)).view_as(x[:, :prototypes])
    return x


def listed(rows: list[Flips], what: str) -> str:
    """A table."""
    header = (what, "bits", "unsafe shares", "flipped", "same class", "right", "flipped by group")
    cells = [
        (
            row.name,
            row.bits,
            "" if row.unsafe is None else f"{row.unsafe:.2f}",
            f"{sum(row.by_group):,}",
            f"{row.same:.2%}",
            f"{row.right:.2%}",
            " ".join(map(str, row.by_group)),
        )
        for row in rows
    ]
    return table(header, cells, "<<>>>><")


if __name__ == "__main__":
    main()
