"""Oblivious transfer extension: millions of transfers from 128 base transfers and AES (Ishai et al., 2003).

A random transfer gives the sender two keys k0, k1 and the receiver k_r for its choice r. The receiver learns nothing
about the other key, the sender nothing about r. For a batch of n transfers, with the roles of the base transfers
swapped (there the sender is the one who chooses, bits s_j, and the receiver has both keys):

1. Column j = 1..128 of a matrix of n rows: the receiver expands its two base keys to t_j and t'_j, and sends
   u_j = t_j ^ t'_j ^ r, where r are all its choices.
2. The sender expands the key that it has and gets q_j = t_j ^ s_j r, by adding u_j where s_j = 1.
3. Row i is q_i = t_i ^ r_i s. Keys: k0 = H(i, q_i) and k1 = H(i, q_i ^ s) for the sender, H(i, t_i) for the receiver.

H is the tweakable correlation-robust hash pi(pi(x) ^ i) ^ pi(x) of Guo et al., "Efficient and Secure Multiparty
Computation from Fixed-Key Block Ciphers" (2020), with pi = AES under a public key of the session.

The model is semi-honest. A matrix that does not belong to the session is found all the same: a hash h, linear over
bits, of every column must fulfil h(q_j) = h(t_j) ^ s_j h(r). The receiver sends h(r), masked by 128 more random rows
that are dropped, and a digest of all h(t_j). h is GHASH under a key that depends on the matrix, as in SoftSpokenOT
(Roy, 2022).

Both ends count transfers, and none is used twice: a frame names its first, the sender accepts nothing but the next, and
the expanded streams continue from batch to batch. A session is never written to disk; a party that is started again
begins a new one.
"""

import hashlib
import hmac
import os
from collections.abc import Iterator
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.base_ot import (
    KAPPA,
    KEY_BYTES,
    ChosenKeys,
    KeyPairs,
    Wire,
    receive_base,
    send_base,
)
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes, Words
from deepshare.private.engines.gateshare.crypto.ring import derive

Index = NDArray[np.intp]

BATCH = 1 << 16  # transfers at a time, whose matrix takes 1 MiB; corrections, too
DONE_BYTES = 8
_HEAD_BYTES, _CHECK_BYTES = 16, 32
_ROWS = 128  # a batch has a multiple of it, and as many again that mask its check
_SLACK = 15  # cryptography wants room for one more block but a byte
_SWAPS = [(1 << level, ((1 << 64) - 1) // ((1 << (1 << level)) + 1)) for level in reversed(range(6))]


def extension_bytes(count: int) -> int:
    """Bytes that the receiver sends for random transfers; the sender answers with `DONE_BYTES`."""
    return sum(_batch_bytes(min(BATCH, count - first)) for first in range(0, count, BATCH))


class OtSender:
    """The sender's end of a session.

    Args:
        wire: The connection to the receiver.
        step: The number of the frames on it.
        base: The result of base transfers, which serve one session.

    Attributes:
        session: The same at both ends, and of no other run; not secret.
        transfers: How many were made so far.
        expand: Ring elements from keys of `random`, the same at both ends.
    """

    def __init__(self, wire: Wire, step: int, base: ChosenKeys) -> None:
        self._wire, self._step, self.session = wire, step, base.session
        self._columns = _Columns(base.keys)
        self._chosen = np.where(base.choices, ~np.uint64(0), np.uint64(0))[:, None]
        self._offset = np.packbits(base.choices, bitorder="little").view(np.uint64)
        self._hash, self.expand = _TweakedHash(base.session), _Expansion(base.session)
        self.transfers = 0

    @classmethod
    def begin(cls, wire: Wire, step: int) -> Self:
        """Make a session with a receiver that begins one, too."""
        return cls(wire, step, receive_base(wire, step))

    def random(self, count: int) -> tuple[Words, Words]:
        """Keys k0 and k1 of random transfers, each (count, 2).

        Raises:
            EngineError: The receiver's matrix is of other transfers, or of another session.
        """
        zero, one = np.empty((count, 2), np.uint64), np.empty((count, 2), np.uint64)
        for part, first, second in self._extend(count):
            zero[part], one[part] = first, second
        return zero, one

    def bits(self, count: int, width: int = 1) -> tuple[Bytes, Bytes]:
        """Keys k0 and k1 of a few bits: (width, count / 8) each, packed, the first transfer in the lowest bit.

        A random transfer of one bit is a product of two random bits, x = k0 ^ k1 of the sender and the receiver's
        choice r, in shares: k0 ^ k_r = x r. With a width of two, one r multiplies two random bits.

        Raises:
            EngineError: As for `random`.
        """
        zero, one = _planes(count, width), _planes(count, width)
        for part, first, second in self._extend(count):
            _pack(first, zero, part)
            _pack(second, one, part)
        return zero, one

    def correlated(self, count: int, index: Index, values: Words) -> Words:
        """Shares of every value times the receiver's choice, in the ring 2^64.

        Args:
            count: Transfers.
            index: (values,), the transfer of each value; any number of values may share one.
            values: Numbers to multiply.

        Raises:
            EngineError: As for `random`.
        """
        zero, one = self.random(count)
        shares = np.empty_like(values)
        for part in _parts(len(values)):
            kept, other = (self.expand(keys, index[part], part.start) for keys in (zero, one))
            self._wire.send(self._step, kept - other + values[part])
            shares[part] = -kept
        return shares

    def _extend(self, count: int) -> Iterator[tuple[slice, Words, Words]]:
        """Keys by batch; success is confirmed after the last."""
        for part in _parts(count):
            first, size = self.transfers, part.stop - part.start
            self.transfers += size
            q = self._matrix(first, size)
            rows = _transposed(q, size)
            yield part, self._hash(rows, first), self._hash(rows ^ self._offset, first)
        self._wire.send(self._step, _numbers(self.transfers))

    def _matrix(self, first: int, count: int) -> Words:
        """Columns q_j of a batch that passed its check."""
        data = self._wire.receive(self._step, _batch_bytes(count))
        head, columns, check = np.split(data, [_HEAD_BYTES, len(data) - _CHECK_BYTES])
        named, size = (int(number) for number in head.view(np.uint64))
        if (named, size) != (first, count):
            found = f"{size} oblivious transfers from number {named} on"
            reason = "they were used already" if named < first else f"{count} from number {first} on are next"
            raise EngineError(f"the receiver offers {found}, but {reason}: start both parties again")
        u = columns.view(np.uint64).reshape(KAPPA, -1)
        q = self._columns.draw(u.shape[1])
        q ^= u & self._chosen
        linear = _LinearHash(self.session, head, u)
        t = linear(q) ^ (check[:KEY_BYTES].view(np.uint64) & self._chosen)
        if not hmac.compare_digest(_digest(t), check[KEY_BYTES:].tobytes()):
            raise EngineError(
                f"the matrix of {count} oblivious transfers from number {first} on does not belong to this session: "
                "start both parties again"
            )
        return q


class OtReceiver:
    """The receiver's end of a session.

    Args:
        wire: The connection to the sender.
        step: The number of the frames on it.
        base: The result of base transfers, which serve one session.

    Attributes:
        session: The same at both ends, and of no other run; not secret.
        transfers: How many were made so far.
        expand: Ring elements from keys of `random`, the same at both ends.
    """

    def __init__(self, wire: Wire, step: int, base: KeyPairs) -> None:
        self._wire, self._step, self.session = wire, step, base.session
        self._zero, self._one = _Columns(base.zero), _Columns(base.one)
        self._hash, self.expand = _TweakedHash(base.session), _Expansion(base.session)
        self.transfers = 0

    @classmethod
    def begin(cls, wire: Wire, step: int) -> Self:
        """Make a session with a sender that begins one, too."""
        return cls(wire, step, send_base(wire, step))

    def random(self, choices: Bits) -> Words:
        """The chosen keys of random transfers, (choices, 2).

        Raises:
            EngineError: The sender counts other transfers.
            ConnectionError: The sender refused the matrix, and says why.
        """
        chosen = np.empty((len(choices), 2), np.uint64)
        for part, keys in self._extend(choices):
            chosen[part] = keys
        return chosen

    def bits(self, choices: Bits, width: int = 1) -> Bytes:
        """The chosen keys of a few bits: (width, choices / 8), packed, the first transfer in the lowest bit.

        Raises:
            EngineError: As for `random`.
            ConnectionError: As for `random`.
        """
        chosen = _planes(len(choices), width)
        for part, keys in self._extend(choices):
            _pack(keys, chosen, part)
        return chosen

    def correlated(self, choices: Bits, index: Index) -> Words:
        """Shares of the sender's values times the choices, in the ring 2^64.

        Args:
            choices: One a transfer.
            index: (values,), as the sender's.

        Raises:
            EngineError: As for `random`, or the sender has another number of values.
            ConnectionError: As for `random`.
        """
        keys = self.random(choices)
        shares = np.empty(len(index), np.uint64)
        for part in _parts(len(index)):
            correction = self._wire.receive(self._step, 8 * (part.stop - part.start)).view(np.uint64)
            shares[part] = self.expand(keys, index[part], part.start) + correction * choices[index[part]]
        return shares

    def _extend(self, choices: Bits) -> Iterator[tuple[slice, Words]]:
        """Chosen keys by batch, not to be used before the sender has confirmed all."""
        for part in _parts(len(choices)):
            first, size = self.transfers, part.stop - part.start
            self.transfers += size
            t = self._matrix(first, choices[part])
            yield part, self._hash(_transposed(t, size), first)
        accepted = int(self._wire.receive(self._step, DONE_BYTES).view(np.uint64)[0])
        if accepted != self.transfers:
            raise EngineError(
                f"the sender has counted {accepted} oblivious transfers, not {self.transfers}: start both parties again"
            )

    def _matrix(self, first: int, choices: Bits) -> Words:
        """Columns t_j of a batch, whose u_j are sent."""
        head = _numbers(first, len(choices)).view(np.uint8)
        r = np.frombuffer(os.urandom(8 * _words(len(choices))), np.uint8).copy()
        r[: len(r) - _ROWS // 8] = 0
        r[: -(-len(choices) // 8)] = np.packbits(choices, bitorder="little")
        t, u = (columns.draw(len(r) // 8) for columns in (self._zero, self._one))
        u ^= t
        u ^= r.view(np.uint64)
        linear = _LinearHash(self.session, head, u)
        self._wire.send(self._step, head, u, linear(r.view(np.uint64)[None]), _digest(linear(t)))
        return t


class _Columns:
    """Streams of AES in counter mode, one a column; no part of a stream is drawn twice."""

    def __init__(self, keys: list[bytes]) -> None:
        self._streams = [Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor() for key in keys]

    def draw(self, words: int) -> Words:
        """The next words of each column: (columns, words)."""
        size, zeros = 8 * words, bytes(8 * words)
        out = np.empty(len(self._streams) * size + _SLACK, np.uint8)
        for column, stream in enumerate(self._streams):
            stream.update_into(zeros, out[column * size :].data)
        return out[:-_SLACK].view(np.uint64).reshape(-1, words)


class Permutation:
    """AES with a public key that depends on the session and a label, on many blocks at once."""

    def __init__(self, session: bytes, label: str) -> None:
        self._encryptor = Cipher(algorithms.AES128(derive(session, "ot", label)[:KEY_BYTES]), modes.ECB()).encryptor()

    def __call__(self, blocks: Words) -> Words:
        """Permute each block of two words."""
        out = np.empty(blocks.nbytes + _SLACK, np.uint8)
        self._encryptor.update_into(blocks.reshape(-1).view(np.uint8).data, out.data)
        return out[:-_SLACK].view(np.uint64).reshape(blocks.shape)


class _TweakedHash:
    """pi(pi(x) ^ i) ^ pi(x) for rows x whose numbers i follow one another."""

    def __init__(self, session: bytes) -> None:
        self._permute = Permutation(session, "rows")

    def __call__(self, rows: Words, first: int) -> Words:
        inner = self._permute(rows)
        tweaked = inner.copy()
        tweaked[:, 0] ^= np.arange(first, first + len(rows), dtype=np.uint64)
        return np.bitwise_xor(inner, self._permute(tweaked), out=inner)


class _Expansion:
    """Ring elements from keys: pi(x) ^ x for x = key ^ position, a position for each element.

    `index` has the transfer of each element; positions follow one another, and no key sees one twice.
    """

    def __init__(self, session: bytes) -> None:
        self._permute = Permutation(session, "values")

    def __call__(self, keys: Words, index: Index, first: int) -> Words:
        blocks = keys[index]
        blocks[:, 0] ^= np.arange(first, first + len(index), dtype=np.uint64)
        return self._permute(blocks)[:, 0] ^ blocks[:, 0]


class _LinearHash:
    """GHASH of columns: AES-GCM's tag minus that of zeros, under a key that depends on the whole matrix."""

    def __init__(self, session: bytes, head: Bytes, u: Words) -> None:
        state = hashlib.sha256(session)
        state.update(head.data)
        state.update(u.reshape(-1).view(np.uint8).data)
        # The nonce hides nothing here, and is the same for all columns, so that it cancels.
        self._gcm, self._nonce = AESGCM(state.digest()[:KEY_BYTES]), bytes(12)
        self._zero = self._tags(np.zeros_like(u[:1]))

    def __call__(self, columns: Words) -> Words:
        return self._tags(columns) ^ self._zero

    def _tags(self, columns: Words) -> Words:
        tags = [self._gcm.encrypt(self._nonce, b"", column.data) for column in columns.view(np.uint8)]
        return np.frombuffer(b"".join(tags), np.uint64).reshape(-1, 2)


def _transposed(columns: Words, count: int) -> Words:
    """The first rows, (count, 2), of a matrix of 128 columns of which the last rows are masks.

    In blocks of 64 x 64 bits: for 32, 16, ... 1 the upper right and the lower left quarter of every square change
    places, in all blocks at once.
    """
    words = columns.shape[1] - _ROWS // 64
    matrix = columns[:, :words].copy().reshape(2, 64, words)
    room = np.empty((2, 32, words), np.uint64)
    for distance, low in _SWAPS:
        squares = matrix.reshape(2, -1, 2, distance, words)
        upper, lower, change = squares[:, :, 0], squares[:, :, 1], room.reshape(2, -1, distance, words)
        np.right_shift(upper, np.uint64(distance), out=change)
        change ^= lower
        change &= np.uint64(low)
        lower ^= change
        change <<= np.uint64(distance)
        upper ^= change
    return np.ascontiguousarray(matrix.transpose(2, 1, 0)).reshape(-1, 2)[:count]


def _planes(count: int, width: int) -> Bytes:
    if not 1 <= width <= 64:
        raise ValueError(f"a width of {width} bits: give 1 to 64")
    return np.empty((width, -(-count // 8)), np.uint8)


def _pack(keys: Words, planes: Bytes, part: slice) -> None:
    """Write the lowest bits of keys into planes."""
    for place, plane in enumerate(planes):
        bits = (keys[:, 0] >> np.uint64(place)).astype(np.uint8) & np.uint8(1)
        plane[part.start // 8 : -(-part.stop // 8)] = np.packbits(bits, bitorder="little")


def _parts(count: int) -> Iterator[slice]:
    for begin in range(0, count, BATCH):
        yield slice(begin, min(begin + BATCH, count))


def _words(count: int) -> int:
    """Words of a column, with the rows that mask the check."""
    return _ROWS // 64 * (-(-count // _ROWS) + 1)


def _batch_bytes(count: int) -> int:
    return _HEAD_BYTES + 8 * KAPPA * _words(count) + _CHECK_BYTES


def _numbers(*numbers: int) -> Words:
    return np.array(numbers, np.uint64)


def _digest(hashes: Words) -> bytes:
    return hashlib.blake2b(hashes.data, digest_size=_CHECK_BYTES - KEY_BYTES).digest()
