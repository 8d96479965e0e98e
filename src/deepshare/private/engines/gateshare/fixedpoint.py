"""The number format: fractional bits, and ranges of all results.

It is public. Fractional bits follow from a network's size and ranges. The server measures ranges on images of its own,
or on synthetic ones, and rounds them up to powers of two. Most networks get the smallest range everywhere, so that
ranges reveal next to nothing about the weights.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.precision import called, check_precision, scores_of
from deepshare.private.ir.patches import sums
from deepshare.private.ir.program import (
    Convolution,
    GatedActivation,
    Linear,
    Multiply,
    Operation,
    Program,
    SharedActivation,
    hidden_tensors,
)

FRACTION, WEIGHT, AFFINE = 16, 14, 12
"""Fractional bits of activations, of weights, and of alpha and beta, in a large network."""

AFFINE_LIMITS = (8, 16, 32, 64)
"""Alpha and beta are below one of these, either way; without a dealer each doubling costs time for every neuron."""

SQUARED = 12
"""Fractional bits of numbers that are squared: with more, too many squares could not be truncated."""

# Each bit more makes four times as many shares unsafe to truncate. So only networks with few results of linear layers,
# none of them large, get more; rounding then flips fewer gates, and less noise hides it.
_FINER, _MOST_LOST = 2, 2.0**-5

# Weights of an output that add up to no more may be finer under encryption, where up to four layers are added.
_LIGHT = 1000.0

PRODUCT_BITS = 22
"""Products are exact for whole numbers of this many bits."""

# The fewest bits of a range, with the sign, and spare bits above the largest number seen: the gate of a number that
# does not fit is wrong, and nobody notices.
LEAST_BITS, MARGIN = 32, 10
# Up to here, lots that the client has to discard are rare.
MOST_BITS = 44

COMPARISON_BITS = "comparison_bits"
"""Name of the engine's option."""

ComparisonBits = int | Literal["calibrated"]
"""Bits of a comparison: so many, or as calibration finds them."""

# Spare bits above the largest number that calibration compares, if comparisons have fewer bits than ranges.
COMPARED_MARGIN = 4
WRONG, MOST_WRONG = 2.5e-5, 1e-3
"""Share of gates that calibrated comparisons get wrong at the most, and those of a given number of bits."""
# Real images have more gates near zero than noise has, as measured: synthetic ones have to leave fewer wrong.
_SYNTHETIC = 0.25
# Gates this near to zero, as a share of the root mean square, tell how many there are still nearer.
_NEAR = 2.0**-4
_FEWEST_COMPARED = 8  # what a comparison can have

NOISE = -6
"""In a large network the server adds noise of deviation 2^NOISE / sqrt(3) to each logit: hides what rounding tells."""

LARGEST_LOGIT = 2.0**10

# Squares of squares grow without bound on images that are unlike all others.
_CURE = "measure on training images, with deepshare private outline --samples 256, and deal from that"

_SAMPLES, _LARGEST_SAMPLE = 8, 4.0


@dataclass(frozen=True)
class NumberFormat:
    """Fractional bits and ranges of a network's numbers.

    Attributes:
        ranges: For each operation the bits that its results need at the scale of activations, with sign and margin.
        limit: The largest number of an image, either way.
        finer: Fractional bits beyond those of a large network.
        compared: For each operation the bits of its results that are compared, with sign and margin, 0 where none are;
            None for those of their ranges.
        dropped: For each operation how many of these a comparison does not see, the lowest.
        affine_limit: Alpha and beta are below it, either way. It is of use without a dealer alone.
    """

    ranges: tuple[int, ...]
    limit: float
    finer: int = 0
    compared: tuple[int, ...] | None = None
    dropped: tuple[int, ...] = ()
    affine_limit: int = AFFINE_LIMITS[0]

    @property
    def fraction(self) -> int:
        """Fractional bits of activations."""
        return FRACTION + self.finer

    @property
    def weight(self) -> int:
        """Fractional bits of weights."""
        return WEIGHT + self.finer

    @property
    def affine(self) -> int:
        """Fractional bits of alpha and beta."""
        return AFFINE + self.finer

    @property
    def noise(self) -> int:
        """The server's noise is as large as uniform noise below 2 to this power, a fixed multiple of the rounding."""
        return NOISE - self.finer

    @classmethod
    def usual(cls, program: Program, comparison_bits: int | None = None) -> Self:
        """The format of nearly every network, known without its weights; sizes are those of so many compared bits."""
        ranges = [LEAST_BITS] * len(program.operations)
        finer = _finer(program, ranges)
        usual = cls(tuple(bits + finer for bits in ranges), 2 * _LARGEST_SAMPLE, finer)
        if comparison_bits is None:
            return usual
        count = len(program.operations)
        return replace(usual, compared=(comparison_bits,) * count, dropped=(0,) * count)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        numbers: dict[str, Any] = {"ranges": list(self.ranges), "limit": self.limit, "finer": self.finer}
        if self.affine_limit != AFFINE_LIMITS[0]:
            numbers["affine_limit"] = self.affine_limit
        if self.compared is None:
            return numbers
        return numbers | {"compared": list(self.compared), "dropped": list(self.dropped)}

    @classmethod
    def parse(cls, message: Any, program: Program) -> Self:
        """Read what `dump` wrote, for an outline.

        Raises:
            EngineError: It is something else.
        """
        try:
            numbers = cls(tuple(message["ranges"]), float(message["limit"]), message["finer"])
            numbers = replace(numbers, affine_limit=message.get("affine_limit", AFFINE_LIMITS[0]))
            if "compared" in message:
                own = tuple(message["compared"]), tuple(message["dropped"])
                numbers = replace(numbers, compared=own[0], dropped=own[1])
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise EngineError(f"the server's number format is damaged ({error}): install the same deepshare") from error
        finer = numbers.finer
        fits = (
            type(finer) is int
            and finer in (0, _FINER)
            and numbers.affine_limit in AFFINE_LIMITS
            and all(isinstance(bits, int) and LEAST_BITS <= bits - finer <= MOST_BITS for bits in numbers.ranges)
        )
        fits = fits and (numbers.compared is None or numbers.are_comparable(len(program.operations)))
        if not fits or len(numbers.ranges) != len(program.operations) or not 0 < numbers.limit < math.inf:
            raise EngineError("the server's number format does not fit its network: install the same deepshare")
        return numbers

    def are_comparable(self, count: int) -> bool:
        """Return True if the bits of comparisons are those of so many operations."""
        compared = () if self.compared is None else self.compared
        return len(compared) == len(self.dropped) == count and all(
            type(bits) is type(dropped) is int
            and (bits == dropped == 0 or (dropped >= 0 and dropped + _FEWEST_COMPARED <= bits <= MOST_BITS + _FINER))
            for bits, dropped in zip(compared, self.dropped, strict=True)
        )

    def check(self, images: Tensor) -> None:
        """Refuse images outside the range.

        Raises:
            EngineError: Says what the range is.
        """
        largest = images.abs().flatten(1).amax(1)
        for number in (largest > self.limit).nonzero().flatten().tolist():
            raise EngineError(
                f"image {number} holds {float(largest[number]):.4g} and the network was calibrated for numbers from "
                f"-{self.limit:g} to {self.limit:g}: normalise images as the network was trained"
            )


def _affine_limit(program: Program) -> int:
    """The least limit above alpha and beta, with room for rounding; the largest for those that no engine takes."""
    shared = [one for one in program.operations if isinstance(one, SharedActivation)]
    largest = max((float(x.abs().max()) for one in shared for x in (one.alpha, one.beta)), default=0.0)
    return next((limit for limit in AFFINE_LIMITS if largest < limit - 2.0**-AFFINE), AFFINE_LIMITS[-1])


def calibrate(
    program: Program,
    samples: Tensor | None = None,
    comparison_bits: ComparisonBits | None = None,
    *,
    dealt: bool = True,
) -> NumberFormat:
    """Measure ranges.

    Args:
        program: With its weights.
        samples: Images of the server's own; without any, synthetic ones.
        comparison_bits: Bits of a comparison; by default all of the range.
        dealt: Whether a dealer makes lots; else the two parties do.

    Raises:
        EngineError: The network's numbers are too large, or comparisons of so few bits are wrong too often.
    """
    images = synthetic(program.input_size) if samples is None else samples
    largest: list[float] = []
    compared = _Compared(program, WRONG if samples is not None else _SYNTHETIC * WRONG)

    last, scores = scores_of(program), images

    def see(number: int, value: Tensor) -> None:
        nonlocal scores
        largest.append(float(value.abs().max()))
        scores = value if number == last else scores
        if comparison_bits is not None:
            compared.see(number, value)

    program.evaluate(images, see)
    ranges = []
    for operation, value in zip(program.operations, largest, strict=True):
        ranges.append(range_bits(value))
        if ranges[-1] > MOST_BITS:
            cure = _CURE if samples is None and _has_square(program) else "train with BatchNorm"
            raise EngineError(f"{called(operation)} reaches {value:.3g}, too large for fixed point: {cure}")
    finer = 0 if _heavy(program, dealt) else _finer(program, ranges)
    limit = 2.0 ** math.ceil(math.log2(2 * largest[0]))
    numbers = NumberFormat(tuple(bits + finer for bits in ranges), limit, finer, affine_limit=_affine_limit(program))
    check_precision(program, images, largest, scores, numbers.fraction, numbers.noise)
    if comparison_bits is None:
        return numbers
    seen, dropped = compared.bits(comparison_bits, numbers.fraction)
    return replace(numbers, compared=seen, dropped=dropped)


class _Compared:
    """Compared numbers of a network, by the operation they come from: how large they are, how often near zero.

    A comparison that does not see the d lowest bits is wrong for x, in units of the last place, with a probability of
    max(0, 1/2 - |x| / 2^d); see `protocols.gate`. With a density p of x near zero that is p 2^(d - 2) on average.

    Args:
        program: With its weights.
        wrong: Share of gates that may be wrong if bits are calibrated.
    """

    def __init__(self, program: Program, wrong: float) -> None:
        self._count, self._wrong = len(program.operations), wrong
        self._nodes = [node for node in program.operations if _compares(node)]
        self._largest: dict[int, float] = {}
        self._density: dict[int, float] = {}

    def see(self, number: int, value: Tensor) -> None:
        """Note the result of an operation."""
        for node in (node for node in self._nodes if node.inputs[0] == number):
            x = _compared_numbers(node, value)
            near = _NEAR * float(x.square().mean().sqrt())
            density = float((x.abs() < near).double().mean()) / (2 * near) if near > 0 else 0.0
            self._largest[number] = max(self._largest.get(number, 1.0), float(x.abs().max()))
            self._density[number] = max(self._density.get(number, WRONG), density)

    def bits(self, wanted: ComparisonBits, fraction: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By operation, bits that are compared and how many of them are dropped; 0 where nothing is.

        Raises:
            EngineError: So few are wrong too often.
        """
        full = {
            number: math.ceil(math.log2(largest)) + fraction + COMPARED_MARGIN + 1
            for number, largest in self._largest.items()
        }
        wrong = self._wrong if wanted == "calibrated" else MOST_WRONG
        # 2^(d - 2) of the density at this many fractional bits is the share of wrong gates.
        most = {
            number: min(max(0, math.floor(math.log2(wrong / density)) + 2 + fraction), full[number] - _FEWEST_COMPARED)
            for number, density in self._density.items()
        }
        if wanted == "calibrated":
            return self._by_operation(full), self._by_operation(most)
        least = max((full[number] - most[number] for number in full), default=_FEWEST_COMPARED)
        if not least <= wanted <= MOST_BITS:
            raise EngineError(
                f"comparisons of {wanted} bits: this network needs at least {least} for less than one wrong gate in "
                f"{1 / MOST_WRONG:,.0f}, and {MOST_BITS} are the most: give another number, or calibrated"
            )
        return self._by_operation({number: max(bits, wanted) for number, bits in full.items()}), self._by_operation(
            {number: max(0, bits - wanted) for number, bits in full.items()}
        )

    def _by_operation(self, found: Mapping[int, int]) -> tuple[int, ...]:
        return tuple(found.get(number, 0) for number in range(self._count))


def _compares(node: Operation) -> bool:
    return isinstance(node, SharedActivation | GatedActivation) and node.comparisons > 0


def _compared_numbers(node: Operation, x: Tensor) -> Tensor:
    """The numbers whose signs are gates of an activation."""
    if isinstance(node, SharedActivation):
        x = x[:, : node.prototypes]
    elif isinstance(node, GatedActivation):
        x = x.flatten(1)[:, node.mask.flatten().nonzero().flatten()]
    else:
        raise TypeError(node)
    return x if node.cells is None else sums(x, node.cells)


def comparison_bits_of(text: str) -> ComparisonBits:
    """Read bits of a comparison.

    Raises:
        EngineError: It is neither a number nor "calibrated".
    """
    if text == "calibrated":
        return "calibrated"
    if not text.isascii() or not text.isdigit():
        raise EngineError(f"comparisons of {text!r} bits: give a number, or calibrated")
    return int(text)


def predicted_format(program: Program, wanted: ComparisonBits | None) -> NumberFormat:
    """The number format as sizes depend on it, without weights unless bits are calibrated.

    Raises:
        EngineError: They are to be calibrated and the network has no weights.
    """
    if wanted != "calibrated":
        return NumberFormat.usual(program, wanted)
    if any(tensor.is_meta for operation in program.operations for tensor in hidden_tensors(operation).values()):
        raise EngineError("an outline has no weights to calibrate on: give the bits of a comparison as a number")
    return calibrate(program, comparison_bits=wanted)


def fractional_format(program: Program) -> NumberFormat:
    """A number format with the fractional bits and the affine limit of a run without a dealer, as far as known.

    Without weights they are the usual ones. Where few results allow finer numbers, ranges decide: only these small
    networks are calibrated.
    """
    usual = NumberFormat.usual(program)
    if any(tensor.is_meta for operation in program.operations for tensor in hidden_tensors(operation).values()):
        return usual
    if usual.finer:
        with suppress(EngineError):  # a run would say what is wrong
            return calibrate(program, dealt=False)
    return replace(usual, affine_limit=_affine_limit(program))


def range_bits(largest: float) -> int:
    """Bits for numbers up to the largest, with sign and margin, in a large network."""
    if not math.isfinite(largest):
        return MOST_BITS + 1
    return max(LEAST_BITS, math.ceil(math.log2(max(largest, 1.0))) + FRACTION + MARGIN + 1)


def _finer(program: Program, ranges: list[int]) -> int:
    """By shapes and ranges alone, so that it is the same for an outline.

    What rounding of squares and products tells is hidden by the noise of large networks only: it would not be finer.
    """
    if _has_square(program):
        return 0
    shares = sum(
        2.0 ** (1 + bits - MARGIN) * operation.elements
        for operation, bits in zip(program.operations, ranges, strict=True)
        if isinstance(operation, Convolution | Linear)
    )
    return _FINER if shares * 2.0 ** (WEIGHT + 2 * _FINER - 64) <= _MOST_LOST else 0


def _has_square(program: Program) -> bool:
    return any(
        isinstance(op, Multiply) or (isinstance(op, GatedActivation) and op.square is not None)
        for op in program.operations
    )


def _heavy(program: Program, dealt: bool) -> bool:
    """Return True if finer weights would have too many bits for exact products, or, without a dealer, encryption."""
    weights = [operation.weight for operation in program.operations if isinstance(operation, Convolution | Linear)]
    if not dealt and any(float(weight.abs().flatten(1).sum(1).max()) > _LIGHT for weight in weights):
        return True
    return any(float(weight.abs().max()) > 2.0 ** (PRODUCT_BITS - WEIGHT - _FINER) for weight in weights)


def synthetic(size: tuple[int, ...]) -> Tensor:
    """Images that reach as far as normalised images do: noise, and two that are as bright and as dark as can be."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_SAMPLES, *size, dtype=torch.float64, generator=generator)
    images[0], images[1] = _LARGEST_SAMPLE, -_LARGEST_SAMPLE
    return images.clamp(-_LARGEST_SAMPLE, _LARGEST_SAMPLE)
