"""Randomness as a pure function of the seed and of where it is used, so that a resumed run draws the same again."""

import hashlib

import torch


def generator(*key: int | str) -> torch.Generator:
    """Return a generator that is seeded by everything in the key."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed made from everything in the key."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
