"""Distributed comparison: two keys, neither of which reveals the threshold, whose results XOR to [x < threshold].

The construction is that of Boyle et al., "Function Secret Sharing for Mixed-Mode and Fixed-Point Secure Computation"
(2021), with results of one bit. Each party walks down a tree of seeds from its root, along the bits of x, the highest
first. While x agrees with the threshold, the seeds of the two are independent and exactly one of them is marked. Where
x departs, a word that belongs to the level and that only the marked one adds makes seeds and marks equal, so that all
later contributions cancel, and sets the XOR of the earlier ones to the result. The last seven bits are decided at once,
by a word of 128 results.

The words are the same for both parties. A party's own is only its root, any 16 random bytes, so roots are expanded from
a seed and not sent. All gates of a layer are handled together, level by level.

The generator is AES-128 in the Matyas-Meyer-Oseas form, AES(block) xor block. A seed is a block without its two lowest
bits: on the way in they say what is asked for (0 left child, 1 right child, 2 leaf), on the way out they are the mark
and the contribution. The AES key is no secret between the parties; every use takes a fresh one, that is every layer of
a lot. One key for all would save next to nothing: AES is a quarter of an evaluation, and its key schedule none of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.parallel import in_parallel

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bits = NDArray[np.bool_]

ROOT_BYTES = 16
_LEAF_BITS = 7
_ZERO, _ONE, _ALL = np.uint64(0), np.uint64(1), ~np.uint64(0)
_BYTE_ONE, _BYTE_SEED = np.uint8(1), np.uint8(0xFC)
_BYTE_LEAF = _BYTE_CONTRIBUTION = np.uint8(2)
_CHUNK = 1 << 14  # gates at a time, a multiple of 8: their seeds stay in the cache
_SLACK = 15  # cryptography wants room for one more block but a byte


def levels(bits: int) -> int:
    """Levels of the tree for numbers of this many bits."""
    if not _LEAF_BITS <= bits <= 64:
        raise EngineError(f"numbers of {bits} bits cannot be compared: give {_LEAF_BITS} to 64 bits")
    return bits - _LEAF_BITS


def key_bytes(gates: int, bits: int) -> int:
    """Bytes of the words for these gates: what is sent to each party, whose roots are expanded from a seed."""
    return 16 * gates * (levels(bits) + 1) + levels(bits) * _packed(gates)


def _packed(gates: int) -> int:
    return -(-gates // 8)


@dataclass(frozen=True)
class Keys:
    """The words for the gates of a layer: all of both parties' keys but the roots.

    Attributes:
        seeds: (levels, gates, 2). What the marked party adds to a child; the two lowest bits belong to the mark of a
            left child and to the contribution.
        leaves: (gates, 2). What the marked party adds to its 128 results.
        turns: (levels, gates / 8), packed. By how much the bit for the mark of a right child differs.
    """

    seeds: Words
    leaves: Words
    turns: Bytes

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, gates: int, bits: int) -> Self:
        """Read what `to_bytes` wrote, without a copy."""
        size, depth = key_bytes(gates, bits), levels(bits)
        if len(data) != size:
            raise EngineError(f"comparison keys of {len(data)} bytes: {gates} gates of {bits} bits have {size}")
        words, turns = np.split(np.frombuffer(data, np.uint8), [16 * gates * (depth + 1)])
        blocks = words.view(np.uint64).reshape(depth + 1, gates, 2)
        return cls(blocks[:depth], blocks[depth], turns.reshape(depth, _packed(gates)))

    def to_bytes(self) -> bytes:
        """All words, in `key_bytes` bytes."""
        return b"".join(part.tobytes() for part in (self.seeds, self.leaves, self.turns))


def deal(thresholds: Words, bits: int, roots: tuple[Words, Words], aes_key: bytes, into: Bytes | None = None) -> Keys:
    """Make the words for gates with these thresholds.

    Args:
        thresholds: (gates,), each below 2^bits.
        bits: Bits of the numbers that are compared.
        roots: (gates, 2) random words of each party.
        aes_key: 16 bytes, not used for other keys.
        into: Room for the words, `key_bytes` bytes; new without.
    """
    room = np.empty(key_bytes(len(thresholds), bits), np.uint8) if into is None else into
    keys = Keys.from_bytes(room.data, len(thresholds), bits)

    def deal_part(part: slice, packed: slice) -> None:
        some = Keys(keys.seeds[:, part], keys.leaves[part], keys.turns[:, packed])
        _deal(thresholds[part], np.stack([root[part] for root in roots]), some, _Generator(aes_key))

    in_parallel([partial(deal_part, *part) for part in _parts(len(thresholds))])
    return keys


def _deal(thresholds: Words, keep: Words, keys: Keys, generator: "_Generator") -> None:
    """`deal` for a chunk; keep is both parties' roots, and is changed.

    Of both children of a block, `keep` is the one that the threshold's way leads to, and `lose` the other. All single
    bits are handled as bytes, eight times as many at once: of a block a level reads and writes the lowest byte alone.
    """
    count, lose, added = len(thresholds), np.empty_like(keep), np.empty_like(keep)
    kept, lost = (blocks.reshape(2, -1).view(np.uint8)[:, ::16] for blocks in (keep, lose))
    marks = np.repeat(np.array([[0], [1]], np.uint8), count, axis=1)
    masks, total, bits = np.negative(marks.astype(np.uint64)), np.zeros(count, np.uint8), kept.copy()
    for word, turns, way in zip(keys.seeds, keys.turns, _ways(thresholds, len(keys.seeds)), strict=True):
        lose[:] = keep
        kept[:], lost[:] = _asked(bits, way), _asked(bits, way ^ _BYTE_ONE)
        generator.replace(keep)
        generator.replace(lose)
        np.bitwise_xor(lose[0], lose[1], out=word)
        lowest = word.view(np.uint8)[:, 0]
        mark_kept, mark_lost = ~(kept[0] ^ kept[1]) & _BYTE_ONE, lowest & _BYTE_ONE
        turn = mark_kept ^ mark_lost
        # x departs to the left where the threshold goes right: then x is below it.
        contribution = (lowest ^ total ^ (way << _BYTE_ONE)) & _BYTE_CONTRIBUTION
        lowest[:] = _asked(lowest, contribution | (mark_kept ^ (turn & way)))
        turns[:] = np.packbits(turn)
        for party in range(2):
            for half in range(2):  # by columns: numpy is slow where masks would be broadcast to pairs
                np.bitwise_and(word[:, half], masks[party], out=added[party, :, half])
        keep ^= added
        bits[:] = kept
        total ^= bits[0] ^ bits[1]
        marks &= way & turn
        marks ^= bits
        marks &= _BYTE_ONE
        masks[:] = marks
        np.negative(masks, out=masks)
    kept[:] = _asked(bits, _BYTE_LEAF)
    generator.replace(keep)
    keys.leaves[:] = keep[0] ^ keep[1] ^ _ones_below(thresholds) ^ _spread(_bit(total, 1))[:, None]


def evaluate(x: Words, party: int, roots: Words, keys: Keys, aes_key: bytes) -> Bits:
    """One party's share of [x < threshold] for every gate; the XOR of both parties' is the result.

    Args:
        x: (gates,), of which the lowest bits count.
        party: 0 or 1.
        roots: (gates, 2), this party's.
        keys: For these gates.
        aes_key: That of `deal`.
    """
    shares, generator = np.empty(len(x), np.bool_), _Generator(aes_key)
    for part, packed in _parts(len(x)):
        some = Keys(keys.seeds[:, part], keys.leaves[part], keys.turns[:, packed])
        shares[part] = _evaluate(x[part], party, roots[part].copy(), some, generator)
    return shares


def _evaluate(x: Words, party: int, blocks: Words, keys: Keys, generator: "_Generator") -> Bits:
    """`evaluate` for a chunk; blocks are its roots, and are changed.

    All single bits are handled as bytes, eight times as many at once: of a block a level reads and writes the lowest
    byte alone.
    """
    depth, count, lowest = len(keys.seeds), len(x), blocks.view(np.uint8)[:, 0]
    masks, added = np.full(count, -party, np.int64).view(np.uint64), np.empty_like(blocks)
    marks, total, bits = np.full(count, party, np.uint8), np.zeros(count, np.uint8), lowest.copy()
    for level, asked in enumerate(_ways(x, depth)):
        lowest[:] = _asked(bits, asked)
        generator.replace(blocks)
        for half in range(2):  # by columns: numpy is slow where masks would be broadcast to pairs
            np.bitwise_and(keys.seeds[level, :, half], masks, out=added[:, half])
        blocks ^= added
        bits[:] = lowest
        total ^= bits
        asked &= np.unpackbits(keys.turns[level], count=count)
        marks &= asked
        marks ^= bits
        marks &= _BYTE_ONE
        masks[:] = marks
        np.negative(masks, out=masks)
    lowest[:] = _asked(bits, _BYTE_LEAF)
    generator.replace(blocks)
    upper = _bit(x, 6) == 1
    leaf = np.where(upper, blocks[:, 1], blocks[:, 0]) ^ (np.where(upper, keys.leaves[:, 1], keys.leaves[:, 0]) & masks)
    share: Bits = _bit(leaf, x & np.uint64(63)) != _bit(total, 1)
    return share


class _Generator:
    """AES(block) xor block, for many blocks at once."""

    def __init__(self, aes_key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES128(aes_key), modes.ECB()).encryptor()
        self._out = np.empty(2 * 16 * _CHUNK + _SLACK, np.uint8)

    def replace(self, blocks: Words) -> None:
        """Put AES(block) xor block in the place of each block."""
        self._encryptor.update_into(blocks.view(np.uint8).data, self._out.data)
        blocks ^= self._out[: blocks.nbytes].view(np.uint64).reshape(blocks.shape)


def _asked(lowest: Bytes, ask: Bytes | np.uint8) -> Bytes:
    """The lowest bytes of blocks, with two bits, such as what is asked for, in place of those that are no seed."""
    return (lowest & _BYTE_SEED) | ask


def _ways(x: Words, depth: int) -> Iterator[Bytes]:
    """The bits of numbers down to the leaves, the highest first."""
    columns, byte = x.view(np.uint8).reshape(len(x), 8), None
    for place in range(depth + _LEAF_BITS - 1, _LEAF_BITS - 1, -1):
        if byte is None or place % 8 == 7:
            byte = columns[:, place // 8].copy()
        yield (byte >> np.uint8(place % 8)) & _BYTE_ONE


def _parts(gates: int) -> Iterator[tuple[slice, slice]]:
    """Gates in chunks, and where a chunk is among packed bits."""
    for begin in range(0, gates, _CHUNK):
        yield slice(begin, begin + _CHUNK), slice(begin // 8, (begin + _CHUNK) // 8)


def _bit(x: Words | Bytes, place: int | Words) -> Words:
    return (x >> np.asarray(place, np.uint64)) & _ONE


def _spread(bit: Words) -> Words:
    """All ones for 1, zero for 0."""
    return np.uint64(0) - bit


def _ones_below(threshold: Words) -> Words:
    """128 results, [j < t] for the seven lowest bits t of a threshold."""
    last = threshold & np.uint64(127)
    rest = (_ONE << (last & np.uint64(63))) - _ONE
    upper = last >= 64
    return np.stack([np.where(upper, _ALL, rest), np.where(upper, rest, _ZERO)], 1)
