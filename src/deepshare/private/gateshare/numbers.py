"""The number format: how many bits after the point, and how large numbers may become.

It is public. Fractional bits are the same for every network; ranges are measured by the server on images of its own, or
on synthetic ones, and rounded up to powers of two that are seldom above the least one, so that they tell next to
nothing about the weights.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private import plain
from deepshare.private.program import Program

FRACTION, WEIGHT, AFFINE = 16, 14, 12
"""Fractional bits of activations, of weights, and of alpha and beta."""

# Bits of numbers, with their sign, that no network is given fewer of; and those that are left over above the largest
# number seen, since a gate of a number that does not fit is wrong and nobody notices.
LEAST_BITS, MARGIN = 32, 10
# Up to here, material that the client has to throw away is rare.
MOST_BITS = 44

NOISE = -6
"""The server adds noise below 2^NOISE to each logit, which hides what rounding tells about the weights."""

LARGEST_LOGIT = 2.0**10

_SAMPLES, _LARGEST_SAMPLE = 8, 4.0


@dataclass(frozen=True)
class Numbers:
    """How large numbers may become.

    Attributes:
        ranges: For each operation the bits that its results need at the scale of activations, with sign and margin.
        limit: The largest number of an image, either way.
    """

    ranges: tuple[int, ...]
    limit: float

    @classmethod
    def usual(cls, program: Program) -> Self:
        """The format of nearly every network, known without its weights."""
        return cls((LEAST_BITS,) * len(program.operations), 2 * _LARGEST_SAMPLE)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {"ranges": list(self.ranges), "limit": self.limit}

    @classmethod
    def parse(cls, message: Any, program: Program) -> Self:
        """Read what `dump` wrote, for an outline.

        Raises:
            EngineError: It is something else.
        """
        try:
            numbers = cls(tuple(message["ranges"]), float(message["limit"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the server's number format is damaged ({error}): install the same deepshare") from error
        fits = all(isinstance(bits, int) and LEAST_BITS <= bits <= MOST_BITS for bits in numbers.ranges)
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


def calibrate(program: Program, samples: Tensor | None = None) -> Numbers:
    """Measure ranges.

    Args:
        program: With its hidden numbers.
        samples: Images of the server's own; without any, synthetic ones.

    Raises:
        EngineError: The network's numbers are too large.
    """
    images = synthetic(program.input_size) if samples is None else samples
    largest: list[float] = []
    plain.evaluate(program, images, lambda _, value: largest.append(float(value.abs().max())))
    ranges = []
    for operation, value in zip(program.operations, largest, strict=True):
        ranges.append(range_bits(value))
        if ranges[-1] > MOST_BITS:
            raise EngineError(f"{operation.name} reaches {value:.3g}, too large for fixed point: train with BatchNorm")
    return Numbers(tuple(ranges), 2.0 ** math.ceil(math.log2(2 * largest[0])))


def range_bits(largest: float) -> int:
    """Bits for numbers up to the largest, with sign and margin."""
    if not math.isfinite(largest):
        return MOST_BITS + 1
    return max(LEAST_BITS, math.ceil(math.log2(max(largest, 1.0))) + FRACTION + MARGIN + 1)


def synthetic(size: tuple[int, ...]) -> Tensor:
    """Images that reach as far as normalised images do: noise, and two that are as bright and as dark as can be."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_SAMPLES, *size, dtype=torch.float64, generator=generator)
    images[0], images[1] = _LARGEST_SAMPLE, -_LARGEST_SAMPLE
    return images.clamp(-_LARGEST_SAMPLE, _LARGEST_SAMPLE)
