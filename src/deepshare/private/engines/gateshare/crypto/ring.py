"""Numbers as elements of the ring Z_2^64, which torch's int64 is: sums and products wrap around.

A real number x is round(x 2^bits). A secret z is held as z = z_S + z_C mod 2^64, one share with each party. A product
of two encoded numbers has the bits of both; each party then shifts its own share, which is right up to one unit in the
last place unless the client's share lies too near to where the ring wraps. The client knows its shares beforehand, and
screens them.

Masks come from a cryptographic generator: AES-256 in counter mode, keyed from a seed and from where the mask is used.
Holders of the same seed expand the same masks, so a dealer sends 32 bytes instead of a tensor. Every use of a seed has
a label of its own; masks of different labels are independent.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from deepshare.errors import EngineError

WINDOW = 1 << 36
SEED_BYTES = 32
_STEP = 1 << 17  # bytes at a time: zeros that stay in the cache
_SLACK = 15  # cryptography wants room for one more block but a byte


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
    return (share >> bits).bitwise_and_((1 << (64 - bits)) - 1) if bits else share


def truncate_server(share: Tensor, bits: int) -> Tensor:
    """The server's share of z / 2^bits."""
    return truncate_client(-share, bits).neg_()


def is_safe_to_truncate(share: Tensor, window: int = WINDOW) -> bool:
    """Return True if no share of the client lies within the window around 0 = 2^64, other than 0 itself.

    Then truncation is right up to one unit for every z of at most the window's size. A share of exactly 0 is that of a
    z = 0 which both parties know to be one, such as padding; by chance there is one in 2^64.
    """
    # Two passes instead of four, and nearly always enough; the smallest number of all has no absolute value.
    if share.numel() and int(share.abs().amin()) > window:
        return True
    near = (share >= -window) & (share < window)
    return not bool(near.any()) or not bool(share[near].any())


def fresh_seed() -> bytes:
    """A new seed from the operating system."""
    return os.urandom(SEED_BYTES)


def derive(seed: bytes, *label: str | int) -> bytes:
    """Derive a seed for one use; it reveals nothing about the seed or about other uses."""
    return hashlib.blake2b(json.dumps(label).encode(), key=seed, digest_size=SEED_BYTES).digest()


def expand(seed: bytes, count: int, *label: str | int) -> NDArray[np.uint8]:
    """Random bytes, the same for the same seed and label."""
    encryptor = Cipher(algorithms.AES(derive(seed, *label)), modes.CTR(bytes(16))).encryptor()
    zeros, out = memoryview(bytes(_STEP)), np.empty(count + _SLACK, np.uint8)
    for begin in range(0, count, _STEP):
        encryptor.update_into(zeros[: count - begin], out[begin:].data)
    return out[:count]


def mask(seed: bytes, shape: Sequence[int], *label: str | int) -> Tensor:
    """Ring elements, uniform over all 64 bits."""
    return torch.from_numpy(expand(seed, 8 * math.prod(shape), *label).view(np.int64)).view(*shape)


def coins(seed: bytes, count: int, *label: str | int) -> NDArray[np.bool_]:
    """Random bits."""
    return np.unpackbits(expand(seed, -(-count // 8), *label), count=count, bitorder="little").view(np.bool_)
