"""Masks from a cryptographic generator: AES-256 in counter mode, keyed from a seed and from where the mask is used.

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

SEED_BYTES = 32
_STEP = 1 << 17  # bytes at a time: zeros that stay in the cache
_SLACK = 15  # cryptography wants room for one more block but a byte


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
