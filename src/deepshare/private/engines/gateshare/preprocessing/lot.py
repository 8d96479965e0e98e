"""Correlated randomness: what the dealer hands out for some images, which a party expands and uses once.

A lot is for one or more images. Most of it is expanded from a seed of 32 bytes; the dealer sends only what has to fit
to the masks of the other party: corrections to the server, whose link to the dealer is the better one, and the keys of
comparisons to both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes, Keys, Words
from deepshare.private.engines.gateshare.crypto.prg import SEED_BYTES, coins, derive, expand, mask
from deepshare.private.engines.gateshare.schedule import Gate, Opening, Product, Schedule, Square

ID_BYTES = 16

Party = Literal["server", "client"]
Piece = tuple[int, str]


def sizes(schedule: Schedule, images: int, party: Party) -> dict[Piece, int]:
    """Bytes of everything in a lot that is not expanded, by step and name."""
    result: dict[Piece, int] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Product) and party == "server":
            result[number, "product"] = 8 * images * step.elements
        elif isinstance(step, Square) and party == "server":
            result[number, "masked"] = 8 * images * step.opening.products
        elif isinstance(step, Gate):
            result |= {(number, name): size for name, size in _gate_sizes(step, images, party).items()}
    return result


def _gate_sizes(step: Gate, images: int, party: Party) -> dict[str, int]:
    gates = images * step.comparisons
    keys = {"keys": dcf.key_bytes(gates, step.bits - 1)} if step.leads else {}
    if party == "client":
        return keys
    words = 8 * images * step.products
    masked = {"masked": words, "affine": words} if step.affine else {"masked": words}
    return masked | ({"bit": 8 * gates, "flip": packed_size(gates)} | keys if step.leads else {})


def ahead_shapes(schedule: Schedule) -> dict[Piece, tuple[int, ...]]:
    """What the client sends ahead for each image: its share of every tensor that is multiplied, hidden by a mask."""
    tensors = {(number, "tensor"): schedule.steps[number].shape for number in schedule.opened}
    neurons = {(n, "neurons"): s.neurons for n, s in enumerate(schedule.steps) if isinstance(s, Gate | Opening)}
    return tensors | neurons


def lot_bytes(schedule: Schedule, images: int, party: Party) -> int:
    """Bytes of a lot."""
    return ID_BYTES + SEED_BYTES + sum(sizes(schedule, images, party).values())


@dataclass(frozen=True, eq=False)
class Lot:
    """One party's half of a lot.

    Attributes:
        id: The same for both halves.
        seed: This party's; the dealer knows it too.
        images: How many images it serves.
        pieces: What is not expanded.
    """

    id: bytes
    seed: bytes
    images: int
    pieces: dict[Piece, Bytes] = field(default_factory=dict)

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Ring elements for every image, expanded."""
        return mask(self.seed, (self.images, *shape), name, number)

    def correction(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Ring elements for every image, as sent."""
        return torch.from_numpy(self.pieces[number, name].view(np.int64)).view(self.images, *shape)

    def flips(self, number: int, gates: int) -> Bits:
        """Random bits, one for each gate of every image: as sent, or expanded."""
        if (number, "flip") in self.pieces:
            return unpack(self.pieces[number, "flip"], self.images * gates)
        return coins(self.seed, self.images * gates, "flip", number)

    def roots(self, number: int, gates: int) -> Words:
        """Roots of this party's comparison keys."""
        data = expand(self.seed, dcf.ROOT_BYTES * self.images * gates, "roots", number)
        return data.view(np.uint64).reshape(-1, 2)

    def aes_key(self, number: int) -> bytes:
        """The public key of the generator for one step."""
        return derive(self.id, "aes", number)[:16]

    def comparison(self, number: int, step: Gate) -> "Comparison":
        """This party's half of the comparisons of one leader."""
        gates, bits = step.comparisons, step.bits
        keys = Keys.from_bytes(self.pieces[number, "keys"].data, self.images * gates, bits - 1)
        flips, roots = self.flips(number, gates), self.roots(number, gates)
        return Comparison(self.images, bits, roots, keys, self.aes_key(number), flips)


@dataclass(frozen=True, eq=False)
class Comparison:
    """One party's half of the comparisons of one leader, for the images of one lot.

    Attributes:
        images: How many images.
        bits: Bits of the numbers.
        roots: This party's.
        keys: The same for both.
        aes_key: The same for both.
        flips: This party's shares of bits that hide the results.
    """

    images: int
    bits: int
    roots: Words
    keys: Keys
    aes_key: bytes
    flips: Bits

    def share(self, hidden: Words, party: Party) -> Bits:
        """This party's share of the gates, hidden by a random bit each, of numbers hidden by the dealer's masks."""
        below = dcf.evaluate(hidden, int(party == "client"), self.roots, self.keys, self.aes_key)
        below ^= self.flips
        if party == "server":
            below ^= (hidden >> np.uint64(self.bits - 1)) & np.uint64(1) == 0
        return below

    def only(self, rows: Sequence[int]) -> "Comparison":
        """The comparisons of some of the images."""
        if len(rows) == self.images:
            return self
        each = len(self.flips) // self.images
        chosen = (np.array(rows, np.int64)[:, None] * each + np.arange(each)).ravel()
        turns = np.unpackbits(self.keys.turns, axis=1, count=len(self.flips))[:, chosen]
        keys = Keys(self.keys.seeds[:, chosen], self.keys.leaves[chosen], np.packbits(turns, axis=1))
        return Comparison(len(rows), self.bits, self.roots[chosen], keys, self.aes_key, self.flips[chosen])


def compare(comparisons: Sequence[Comparison], hidden: Tensor, party: Party) -> Bits:
    """This party's shares of the hidden gates of a batch, whose images come from several lots."""
    words = hidden.numpy().view(np.uint64)
    each = len(words) // sum(comparison.images for comparison in comparisons)
    ends = np.cumsum([comparison.images * each for comparison in comparisons])[:-1]
    parts = np.split(words, ends)
    return np.concatenate([c.share(part, party) for c, part in zip(comparisons, parts, strict=True)])


def packed_size(bits: int) -> int:
    """Bytes that bits take."""
    return -(-bits // 8)


def pack(bits: Bits) -> Bytes:
    """Bits in bytes."""
    return np.packbits(bits, bitorder="little")


def unpack(data: NDArray[np.uint8], count: int) -> Bits:
    """Bits out of bytes."""
    return np.unpackbits(data, count=count, bitorder="little").view(np.bool_)
