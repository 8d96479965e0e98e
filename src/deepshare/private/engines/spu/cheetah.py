"""Bytes and rounds of CHEETAH: products by homomorphic encryption, comparisons and selections by oblivious transfer.

Sizes of ciphertexts are those of spu 0.10.0.dev20251211 in a ring of 64 bits, measured: 8,192 coefficients to a
ciphertext, half of a fresh one is a seed, and all are compressed.
"""

from functools import cache
from math import ceil

import numpy as np

from deepshare.private.runtime.outcome import Part

_COEFFICIENTS = 8192
# Of matrix products: a fresh ciphertext; an answer with full packing, and one without, for which each value adds.
_FRESH, _PACKED, _BARE, _VALUE = 184_980, 254_490, 127_300, 17
# Of products element by element, for 8,192 at once: fresh ones, their answer, and both ways of a product of two shares.
_ENCRYPTED, _ANSWER, _SHARES = 500_300, 641_000, 893_800


def tile(rows: int, inner: int, columns: int, packs: bool) -> tuple[int, int, int]:
    """The blocks that a matrix product is cut into; the protocol weighs communication against computation.

    Answers that are packed take depths that are powers of two.
    """
    heights = np.arange(1, min(_COEFFICIENTS, rows) + 1)[:, None]
    depths = 2 ** np.arange(inner.bit_length()) if packs else np.arange(1, inner + 1)
    widths = np.minimum(columns, _COEFFICIENTS // (heights * depths))
    down, deep, across = -(-rows // heights), -(-inner // depths), -(-columns // np.maximum(widths, 1))
    messages = np.minimum(down, across) * deep - (-down * across // depths)
    packing = ceil(rows * columns / _COEFFICIENTS) * depths if packs else 0
    weight = np.where(widths > 0, 1000.0 * messages + packing + down * deep * across / 10, np.inf)
    height, depth = divmod(int(np.flatnonzero(weight == weight.min())[-1]), len(depths))
    return height + 1, int(depths[depth]), int(widths[height, depth])


@cache
def product(rows: int, inner: int, columns: int) -> Part:
    """A share (rows, inner) times the server's matrix (inner, columns): the smaller factor goes out encrypted."""
    height, depth, width = tile(rows, inner, columns, True)
    packs = rows > height or columns > width
    if not packs:
        height, depth, width = tile(rows, inner, columns, False)
    down, deep, across = ceil(rows / height), ceil(inner / depth), ceil(columns / width)
    sent = min(down, across) * deep * _FRESH
    if not packs:
        answer = down * across * _BARE + rows * columns * _VALUE
    elif depth < rows * columns:
        answer = ceil(down * across / depth) * _PACKED
    else:
        answer = ceil(rows * columns / _COEFFICIENTS) * _PACKED
    if down <= across:
        return Part(client_bytes=sent, server_bytes=answer, rounds=1)
    return Part(server_bytes=sent, client_bytes=answer, rounds=1)


def comparison(size: int) -> Part:
    """Comparisons of shares with zero."""
    return Part(server_bytes=ceil(69.125 * size), client_bytes=ceil(13.125 * size), rounds=17)


def selection(size: int) -> Part:
    """Products of shares with gates."""
    return Part(server_bytes=ceil(8.125 * size), client_bytes=ceil(8.125 * size), rounds=2)


def truncation(size: int) -> Part:
    """Truncations after products in fixed point."""
    return Part(server_bytes=3 * size, client_bytes=max(16, size // 8), rounds=1)


def scale(size: int) -> Part:
    """Shares times the server's numbers, element by element."""
    batches = ceil(size / _COEFFICIENTS)
    return Part(server_bytes=batches * _ANSWER, client_bytes=batches * _ENCRYPTED, rounds=1)


BATCH = _COEFFICIENTS // 2
"""Triples that are made at once."""


class Triples:
    """Products of two shares: short ones use triples, which are made in batches and kept, long ones none."""

    def __init__(self, left: int = BATCH - 1) -> None:
        self._left = left  # keys are made with a first product of one element

    def product(self, size: int) -> Part:
        """The cost of `size` products, element by element."""
        if size >= 2 * _COEFFICIENTS:
            sent = 2 * ceil(size / 2 / _COEFFICIENTS) * _SHARES
            return Part(server_bytes=sent, client_bytes=sent, rounds=1)
        batches = ceil(2 * size / _COEFFICIENTS) if size > self._left else 0
        self._left += batches * _COEFFICIENTS // 2 - size
        made = Part(server_bytes=batches * _ENCRYPTED, client_bytes=batches * _ANSWER, rounds=1 if batches else 0)
        return made + Part(server_bytes=16 * size, client_bytes=16 * size, rounds=1)
