"""Small scalars times random vectors: shares of d p mod 2^64 for a number d of one party and a vector p of the other.

The *chooser* has a number d below 2^b, the *holder* gets a random p as long as they like, and both get shares of d p.
It is the small-field VOLE of SoftSpokenOT (Roy, 2022), with sums mod 2^64 in place of XOR. F expands a key to ring
elements.

Once per session, for each d
    1. holder             a tree of keys with 2^b leaves k_x, each node giving two children (GGM)
    2. transfers          b of them: for each level, the XOR of all left children or of all right ones, those beside the
                          way to leaf d. With it the chooser computes all leaves but k_d.      32 bytes a level

As often as needed, without a message
    3. holder             p = sum of F(k_x), its share is w = sum of x F(k_x)
    4. chooser            its share is -sum of (x - d) F(k_x), where the leaf that it lacks counts nothing

So w - sum of (x - d) F(k_x) = d sum of F(k_x) = d p. To the chooser p is random, as F(k_d) is; the holder sees nothing
but the transfers, which hide d. Ends count the elements of all streams, and none is drawn twice.

F(k)_i are the words of pi(k ^ i) ^ k ^ i with pi = AES under a public key of the session; children of k are the same
under two other keys.
"""

from typing import Self

import numpy as np

from deepshare.private.engines.gateshare.crypto.base_ot import Wire
from deepshare.private.engines.gateshare.crypto.dcf import Words
from deepshare.private.engines.gateshare.crypto.ot import OtReceiver, OtSender, Permutation

LEVEL_BYTES = 32
"""Bytes from the holder for each level of a tree, beside those of its transfer."""

_WORDS = 1 << 16  # of all streams together at a time, which fit a cache


class VoleHolder:
    """The end that gets p.

    Args:
        leaves: (scalars, 2^b, 2), all keys.
        session: What both ends have in common.
    """

    def __init__(self, leaves: Words, session: bytes) -> None:
        self._leaves, self._stream = leaves, _Stream(session)

    @classmethod
    def begin(cls, wire: Wire, step: int, sender: OtSender, roots: Words, bits: int) -> Self:
        """Make a session with a chooser that begins one, too.

        Args:
            wire: The connection to it.
            step: The number of the frames on it.
            sender: Transfers to it.
            roots: (scalars, 2), fresh random keys.
            bits: b.
        """
        tree, sums = _Tree(sender.session), []
        nodes = roots[:, None]
        for _ in range(bits):
            left, right = tree.children(nodes)
            sums.append(np.stack([np.bitwise_xor.reduce(side, 1) for side in (left, right)], 1))
            nodes = np.stack([left, right], 2).reshape(len(roots), -1, 2)
        keys = np.stack(sender.random(len(roots) * bits), 1)
        wire.send(step, np.stack(sums, 1).reshape(-1, 2, 2) ^ keys)
        return cls(nodes, sender.session)

    def draw(self, scalars: slice, count: int) -> tuple[Words, Words]:
        """Vectors p and shares of d p, each (scalars, count)."""
        leaves = self._leaves[scalars]
        p, w = (np.zeros((len(leaves), count), np.uint64) for _ in range(2))
        for part, position in self._stream.parts(len(leaves), count):
            # The sum of x F(k_x) is that of all sums from the last leaf down to x > 0.
            for leaf in reversed(range(leaves.shape[1])):
                p[:, part] += self._stream(leaves[:, leaf], part, position)
                if leaf:
                    w[:, part] += p[:, part]
        return p, w


class VoleChooser:
    """The end that has d.

    Args:
        leaves: (scalars, 2^b, 2), all keys but those of d.
        numbers: d, (scalars,).
        session: What both ends have in common.
    """

    def __init__(self, leaves: Words, numbers: Words, session: bytes) -> None:
        self._leaves, self._numbers, self._stream = leaves, numbers, _Stream(session)

    @classmethod
    def begin(cls, wire: Wire, step: int, receiver: OtReceiver, numbers: Words, bits: int) -> Self:
        """Make a session with a holder that begins one, too.

        Args:
            wire: The connection to it.
            step: The number of the frames on it.
            receiver: Transfers from it.
            numbers: d, (scalars,), each below 2^bits.
            bits: b.
        """
        tree, count = _Tree(receiver.session), len(numbers)
        path = (numbers[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint64)) & np.uint64(1)
        beside = (1 - path).astype(np.bool_)
        keys = receiver.random(beside.reshape(-1))
        sums = wire.receive(step, LEVEL_BYTES * count * bits).view(np.uint64).reshape(-1, 2, 2)
        chosen = (np.where(beside.reshape(-1, 1), sums[:, 1], sums[:, 0]) ^ keys).reshape(count, bits, 2)
        each, at = np.arange(count), np.zeros(count, np.intp)
        nodes = np.zeros((count, 1, 2), np.uint64)
        for level in range(bits):
            sides = np.stack(tree.children(nodes), 2)
            # Children of the node that is unknown are rubbish: one is found from the sum, the other becomes unknown.
            sides[each, at] = 0
            side = beside[:, level].astype(np.intp)
            known = np.bitwise_xor.reduce(sides[each, :, side], 1)
            sides[each, at, side] = chosen[:, level] ^ known
            nodes = sides.reshape(count, -1, 2)
            at = 2 * at + 1 - side
        return cls(nodes, numbers, receiver.session)

    def draw(self, scalars: slice, count: int) -> Words:
        """Shares of d p, (scalars, count)."""
        leaves, numbers = self._leaves[scalars], self._numbers[scalars, None]
        share = np.zeros((len(leaves), count), np.uint64)
        for part, position in self._stream.parts(len(leaves), count):
            for leaf in range(leaves.shape[1]):
                share[:, part] += (numbers - np.uint64(leaf)) * self._stream(leaves[:, leaf], part, position)
        return share


class _Tree:
    """Children of keys."""

    def __init__(self, session: bytes) -> None:
        self._permute = [Permutation(session, label) for label in ("left", "right")]

    def children(self, nodes: Words) -> tuple[Words, Words]:
        """Left and right children, each shaped as the nodes."""
        left, right = (permute(nodes) ^ nodes for permute in self._permute)
        return left, right


class _Stream:
    """Ring elements from keys, from a position that only grows."""

    def __init__(self, session: bytes) -> None:
        self._permute, self._next = Permutation(session, "vectors"), 0

    def parts(self, keys: int, count: int) -> list[tuple[slice, int]]:
        """Parts of vectors, of an even number of elements but the last, and the position of each."""
        size = max(2, _WORDS // keys // 2 * 2)
        found = [(slice(begin, min(begin + size, count)), self._next + begin // 2) for begin in range(0, count, size)]
        self._next += -(-count // 2)
        return found

    def __call__(self, keys: Words, part: slice, position: int) -> Words:
        """Elements of one key a row."""
        count = part.stop - part.start
        blocks = np.repeat(keys[:, None], -(-count // 2), 1)
        blocks[:, :, 0] ^= np.arange(position, position + blocks.shape[1], dtype=np.uint64)
        blocks ^= self._permute(blocks)
        return blocks.reshape(len(keys), -1)[:, :count]
