"""Comparison: shares of h = [x >= 0] xor b, where both parties know eps = x + r.

Letters. r is uniform and b a random bit of each comparison; only the dealer knows them. x has k (`bits`) bits,
|x| < 2^(k-1); top is bit k - 1, low the bits below it.

Before the images
    1. dealer -> both     comparison keys, words of [ . < low(r)]  ("keys")                   `dcf.key_bytes`
       dealer -> server   f_S = b xor top(r) xor f_C  ("flip")                                a bit each
       Expanded from seeds: f_C, each party's roots of the keys

With the images
    2. both               c_S, c_C, shares of c = [low(eps) < low(r)], each from its key: see `crypto.dcf`
    3. client             h_C = c_C xor f_C
       server             h_S = c_S xor f_S xor 1 xor top(eps)

x = eps - r borrows at bit k - 1 if low(eps) < low(r), so top(x) = top(eps) xor top(r) xor c, and
h_S xor h_C = 1 xor top(eps) xor top(r) xor c xor b = (1 xor top(x)) xor b.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.base_ot import Wire
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes, Keys, Words
from deepshare.private.engines.gateshare.lot import Batch, Holder, Lot, LotBatch
from deepshare.private.engines.gateshare.protocols.step import Dealing


@dataclass(frozen=True, eq=False)
class ComparisonKeys:
    """One party's half of the comparisons of one step, for images of one lot.

    Attributes:
        images: How many images.
        bits: k.
        roots: This party's.
        keys: The same for both.
        aes_key: The same for both.
        flips: f, this party's.
    """

    images: int
    bits: int
    roots: Words
    keys: Keys
    aes_key: bytes
    flips: Bits

    def share(self, eps: Words, party: Holder) -> Bits:
        """Do steps 2 and 3: this party's share of h."""
        h = dcf.evaluate(eps, int(party == "client"), self.roots, self.keys, self.aes_key)
        h ^= self.flips
        if party == "server":
            h ^= (eps >> np.uint64(self.bits - 1)) & np.uint64(1) == 0
        return h

    def select(self, rows: Sequence[int]) -> "ComparisonKeys":
        """Keep some of the images."""
        if len(rows) == self.images:
            return self
        each = len(self.flips) // self.images
        chosen = (np.array(rows, np.int64)[:, None] * each + np.arange(each)).ravel()
        turns = np.unpackbits(self.keys.turns, axis=1, count=len(self.flips))[:, chosen]
        keys = Keys(self.keys.seeds[:, chosen], self.keys.leaves[chosen], np.packbits(turns, axis=1))
        return ComparisonKeys(len(rows), self.bits, self.roots[chosen], keys, self.aes_key, self.flips[chosen])


@dataclass(frozen=True, eq=False)
class Comparisons(Batch):
    """One party's half of the comparisons of one step, for a batch whose images come from several lots."""

    parts: tuple[ComparisonKeys, ...]

    def share(self, eps: Tensor, party: Holder, wire: Wire, number: int) -> Bits:
        """Do steps 2 and 3: this party's share of h, (images * comparisons,); nothing is sent."""
        words = eps.numpy().view(np.uint64)
        each = len(words) // sum(part.images for part in self.parts)
        ends = np.cumsum([part.images * each for part in self.parts])[:-1]
        return np.concatenate(
            [part.share(one, party) for part, one in zip(self.parts, np.split(words, ends), strict=True)]
        )

    def select(self, rows: Sequence[int]) -> Self:
        """Keep some of the images, all of one lot."""
        (part,) = self.parts
        return type(self)((part.select(rows),))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Put images of several lots into one batch."""
        return cls(tuple(one for part in parts for one in part.parts))


def comparison_bytes(comparisons: int, bits: int, party: Holder) -> dict[str, int]:
    """Size of step 1."""
    keys = {"keys": dcf.key_bytes(comparisons, bits - 1)}
    return keys if party == "client" else {"flip": packed_size(comparisons)} | keys


def deal_comparisons(number: int, bits: int, r: Tensor, at: Dealing) -> Bits:
    """Do step 1 for r of all images, (images * comparisons,); returns b."""
    words, each = r.numpy().view(np.uint64), len(r) // at.own.images
    b = at.own.coins("bit", number, each)
    low, top = words & np.uint64((1 << (bits - 1)) - 1), (words >> np.uint64(bits - 1)) & np.uint64(1) == 1
    roots = _roots(at.server, number, each), _roots(at.client, number, each)
    keys = np.empty(dcf.key_bytes(len(low), bits - 1), np.uint8)
    dcf.deal(low, bits - 1, roots, at.server.public_key("aes", number), keys)
    at.server.pieces[number, "keys"] = at.client.pieces[number, "keys"] = keys
    at.server.pieces[number, "flip"] = pack(b ^ top ^ at.client.coins("flip", number, each))
    return b


def read_comparisons(number: int, bits: int, each: int, lot: LotBatch) -> Comparisons:
    """A party's comparisons of a step, `each` for an image, out of its lots."""
    return Comparisons(tuple(read_keys(number, bits, each, part).select(rows) for part, rows in lot.parts))


def read_keys(number: int, bits: int, each: int, lot: Lot) -> ComparisonKeys:
    """A party's comparisons of a step out of one lot; f_S was sent, f_C is expanded."""
    count = lot.images * each
    keys = Keys.from_bytes(lot.pieces[number, "keys"].data, count, bits - 1)
    sent = lot.pieces.get((number, "flip"))
    flips = lot.coins("flip", number, each) if sent is None else unpack(sent, count)
    return ComparisonKeys(lot.images, bits, _roots(lot, number, each), keys, lot.public_key("aes", number), flips)


def _roots(lot: Lot, number: int, each: int) -> Words:
    return lot.expand("roots", number, dcf.ROOT_BYTES * each).view(np.uint64).reshape(-1, 2)


def packed_size(bits: int) -> int:
    """Bytes that bits take."""
    return -(-bits // 8)


def pack(bits: Bits) -> Bytes:
    """Bits in bytes."""
    return np.packbits(bits, bitorder="little")


def unpack(data: Bytes, count: int) -> Bits:
    """Bits out of bytes."""
    return np.unpackbits(data, count=count, bitorder="little").view(np.bool_)
