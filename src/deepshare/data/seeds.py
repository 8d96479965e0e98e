"""Random generators derived from a seed and a key, so that a resumed run draws the same numbers."""

import hashlib

import torch


def generator(*key: int | str) -> torch.Generator:
    """Return a generator seeded by the whole key."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed derived from the whole key."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
