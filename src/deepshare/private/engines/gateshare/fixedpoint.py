"""The number format: fractional bits, and ranges of all results.

It is public. Fractional bits follow from a network's size and ranges. The server measures ranges on images of its own,
or on synthetic ones, and rounds them up to powers of two. Most networks get the smallest range everywhere, so that
ranges reveal next to nothing about the weights.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import Convolution, GatedActivation, Linear, Multiply, Program

FRACTION, WEIGHT, AFFINE = 16, 14, 12
"""Fractional bits of activations, of weights, and of alpha and beta, in a large network."""

SQUARED = 12
"""Fractional bits of numbers that are squared: with more, too many squares could not be truncated."""

# Each bit more makes four times as many shares unsafe to truncate. So only networks with few results of linear layers,
# none of them large, get more; rounding then flips fewer gates, and less noise hides it.
_FINER, _MOST_LOST = 2, 2.0**-5

PRODUCT_BITS = 22
"""Products are exact for whole numbers of this many bits."""

# The fewest bits of a range, with the sign, and spare bits above the largest number seen: the gate of a number that
# does not fit is wrong, and nobody notices.
LEAST_BITS, MARGIN = 32, 10
# Up to here, lots that the client has to discard are rare.
MOST_BITS = 44

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
    """

    ranges: tuple[int, ...]
    limit: float
    finer: int = 0

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
    def usual(cls, program: Program) -> Self:
        """The format of nearly every network, known without its weights."""
        ranges = [LEAST_BITS] * len(program.operations)
        finer = _finer(program, ranges)
        return cls(tuple(bits + finer for bits in ranges), 2 * _LARGEST_SAMPLE, finer)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {"ranges": list(self.ranges), "limit": self.limit, "finer": self.finer}

    @classmethod
    def parse(cls, message: Any, program: Program) -> Self:
        """Read what `dump` wrote, for an outline.

        Raises:
            EngineError: It is something else.
        """
        try:
            numbers = cls(tuple(message["ranges"]), float(message["limit"]), message["finer"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"the server's number format is damaged ({error}): install the same deepshare") from error
        finer = numbers.finer
        fits = (
            type(finer) is int
            and finer in (0, _FINER)
            and all(isinstance(bits, int) and LEAST_BITS <= bits - finer <= MOST_BITS for bits in numbers.ranges)
        )
        if not fits or len(numbers.ranges) != len(program.operations) or not 0 < numbers.limit < math.inf:
            raise EngineError("the server's number format does not fit its network: install the same deepshare")
        return numbers

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


def calibrate(program: Program, samples: Tensor | None = None) -> NumberFormat:
    """Measure ranges.

    Args:
        program: With its weights.
        samples: Images of the server's own; without any, synthetic ones.

    Raises:
        EngineError: The network's numbers are too large.
    """
    images = synthetic(program.input_size) if samples is None else samples
    largest: list[float] = []
    program.evaluate(images, lambda _, value: largest.append(float(value.abs().max())))
    ranges = []
    for operation, value in zip(program.operations, largest, strict=True):
        ranges.append(range_bits(value))
        if ranges[-1] > MOST_BITS:
            cure = _CURE if samples is None and _has_square(program) else "train with BatchNorm"
            raise EngineError(f"{operation.name} reaches {value:.3g}, too large for fixed point: {cure}")
    finer = 0 if _heavy(program) else _finer(program, ranges)
    return NumberFormat(tuple(bits + finer for bits in ranges), 2.0 ** math.ceil(math.log2(2 * largest[0])), finer)


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


def _heavy(program: Program) -> bool:
    """Whether finer weights would have too many bits for exact products."""
    linear = [operation for operation in program.operations if isinstance(operation, Convolution | Linear)]
    return any(float(operation.weight.abs().max()) > 2.0 ** (PRODUCT_BITS - WEIGHT - _FINER) for operation in linear)


def synthetic(size: tuple[int, ...]) -> Tensor:
    """Images that reach as far as normalised images do: noise, and two that are as bright and as dark as can be."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_SAMPLES, *size, dtype=torch.float64, generator=generator)
    images[0], images[1] = _LARGEST_SAMPLE, -_LARGEST_SAMPLE
    return images.clamp(-_LARGEST_SAMPLE, _LARGEST_SAMPLE)
