"""Numbers in fixed point: integers modulo 2^64 that stand for multiples of 2^-16, in two shares that add up."""

import torch
from torch import Tensor

BITS = 16
# Rounded weights are what errs most, and a prototype near zero whose sign errs takes all its replicates with it: two
# more bits make that four times as rare. They make a failure of truncation four times as likely, which is rarer still.
WEIGHT_BITS = 18
# A product of two numbers below it, at double scale, stays far from the end of the ring.
LIMIT = 2.0**13


def encode(values: Tensor, bits: int = BITS) -> Tensor:
    """The nearest integers at a scale of 2^bits."""
    return (values.double() * 2.0**bits).round().long()


def decode(integers: Tensor) -> Tensor:
    """The numbers that integers stand for."""
    return integers.double() / 2.0**BITS


def truncate(share: Tensor, bits: int = BITS) -> Tensor:
    """Divide by 2^bits, the scale of one factor of a product, each party for itself, as CrypTen does.

    It is one unit off at most, unless the shares happen to wrap around: for an integer v with probability |v| / 2^64.
    """
    return (share + (1 << (bits - 1))) >> bits


def divide(share: Tensor, divisor: int) -> Tensor:
    """Divide by any whole number, each party for itself."""
    return torch.div(share, divisor, rounding_mode="trunc")
