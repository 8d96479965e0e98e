"""Base transfers that anybody can repeat, and a test of uniform bytes."""

import numpy as np

from deepshare.private.engines.gateshare.crypto.base_ot import ChosenKeys, KeyPairs
from deepshare.private.engines.gateshare.crypto.ring import coins, derive, expand
from tests.private.engines.gateshare.crypto.two_ends import Payload

STEP = 5
SEED = bytes(range(32))


def base(seed: bytes = SEED) -> tuple[ChosenKeys, KeyPairs]:
    """Base transfers that anybody can repeat."""
    zero, one = ([expand(seed, 16, "key", choice, i).tobytes() for i in range(128)] for choice in (0, 1))
    choices = coins(seed, 128, "choices")
    chosen = [(zero[i], one[i])[int(choice)] for i, choice in enumerate(choices)]
    return ChosenKeys(derive(seed, "session"), choices, chosen), KeyPairs(derive(seed, "session"), zero, one)


def is_uniform(data: Payload) -> bool:
    """Chi-square over bytes, and over bits at each of 8 places."""
    counts = np.bincount(data, minlength=256)
    expected = len(data) / 256
    bytes_fit = abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 5 * np.sqrt(2 * 255)
    ones = np.unpackbits(data.reshape(-1, 1), axis=1).sum(axis=0)
    return bool(bytes_fit and (abs(ones - len(data) / 2) < 5 * np.sqrt(len(data)) / 2).all())
