"""Numbers in fixed point: integers modulo 2^64 that stand for multiples of 2^-16, in two shares that add up."""

import torch
from torch import Tensor

BITS = 16
# A product of two numbers below it, at double scale, stays far from the end of the ring.
LIMIT = 2.0**15


def encode(values: Tensor, bits: int = BITS) -> Tensor:
    """The nearest integers at a scale of 2^bits."""
    return (values.double() * 2.0**bits).round().long()


def decode(integers: Tensor) -> Tensor:
    """Back to numbers."""
    return integers.double() / 2.0**BITS


def truncate(share: Tensor) -> Tensor:
    """From double scale to single scale, each party for itself, as CrypTen does between two parties.

    It is one unit off at most, unless the shares happen to wrap around: for a number v with probability |v| / 2^31.
    """
    return (share + (1 << (BITS - 1))) >> BITS


def divide(share: Tensor, divisor: int) -> Tensor:
    """The same for any whole number."""
    return torch.div(share, divisor, rounding_mode="trunc")
