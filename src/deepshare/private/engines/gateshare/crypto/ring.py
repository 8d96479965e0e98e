"""Numbers as elements of the ring Z_2^64, which torch's int64 is: sums and products wrap around.

A real number x is round(x 2^bits). A secret z is held as z = z_S + z_C mod 2^64, one share with each party. A product
of two encoded numbers has the bits of both; each party then shifts its own share, which is right up to one unit in the
last place unless the client's share lies too near to where the ring wraps. The client knows its shares beforehand, and
screens them.
"""

import torch
from torch import Tensor

from deepshare.errors import EngineError

WINDOW = 1 << 36


def encode(x: Tensor, bits: int) -> Tensor:
    """The nearest ring elements at this many fractional bits.

    Example:
        >>> encode(torch.tensor([1.5, -0.25]), 4)
        tensor([24, -4])
    """
    scaled = (x.double() * 2.0**bits).round()
    if not bool((scaled.abs() < 2.0**63).all()):
        raise EngineError(f"a number does not fit into the ring at {bits} fractional bits: give finite, smaller ones")
    return scaled.to(torch.int64)


def decode(x: Tensor, bits: int) -> Tensor:
    """The real numbers, in float64, that ring elements stand for."""
    return x.double() * 2.0**-bits


def truncate_client(share: Tensor, bits: int) -> Tensor:
    """The client's share of z / 2^bits: its share of z as an unsigned number, shifted."""
    # An arithmetic shift copies the sign into the upper bits; the mask clears them.
    return (share >> bits) & ((1 << (64 - bits)) - 1) if bits else share


def truncate_server(share: Tensor, bits: int) -> Tensor:
    """The server's share of z / 2^bits."""
    return -truncate_client(-share, bits)


def is_safe_to_truncate(share: Tensor, window: int = WINDOW) -> bool:
    """Whether no share of the client lies within the window around 0 = 2^64.

    Then truncation is right up to one unit for every z of at most the window's size.
    """
    return not bool(((share >= -window) & (share < window)).any())
