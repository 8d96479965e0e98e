"""Comparison by carries: shares of h = [x >= 0] xor b from oblivious transfers, without a dealer.

Letters. x = z_S + z_C mod 2^k has k (`bits`, 6 or more) bits, |x| < 2^(k-1); the client knows z_C before the images.
top is bit k - 1, low the m = k - 1 bits below it. s = low(z_S), c = 2^m - 1 - low(z_C), both in digits of four bits.
b_S and b_C are random bits of the parties, b = b_S xor b_C.

The low bits carry into the top if s > c. G ("greater") and P ("equal") of a digit, and then of runs of digits, are held
in shares: G = G_S xor G_C. A gate has d = ceil(m / 4) digits and d - 1 merges.

Before the images
    1. transfers          The client chooses the bits of c, one transfer a bit. The server combines keys of a digit's
                          bits to 16 pads of two bits, one for every value, and the client those that it has to the pad
                          of its value  ("leaves")                                            m transfers a gate
    2. transfers, both    Shares of random A, B, B' and of A B, A B'  ("triples"). A party's choice is its share of A,
       directions         and its shares of B, B' are the differences of its two keys         2 transfers a merge

With the images
    3. server -> client   for each digit and value v: [s > v] xor G_S, [s = v] xor P_S, behind the pad of v; G_S and P_S
                          are random                                                 up to 4 bytes a digit
    4. both ways          merge neighbours, level by level, all gates at once: G = G_hi xor P_hi G_lo, P = P_hi P_lo;
                          P_hi xor A, G_lo xor B, P_lo xor B' opened; the lowest has no P     3 bits a merge, lowest 2
    5. client             h_C = top(z_C) xor G_C xor b_C
       server             h_S = 1 xor top(z_S) xor G_S xor b_S

In 4 nobody waits before sending. The server begins, so that its level l leaves together with what it knows of level
l - 1, and two levels take one round trip. So a comparison takes two round trips more than one by dealt keys, for all k.

Pads of different values use different bits of a key, so whoever lacks one key of a digit lacks every pad but one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.base_ot import Wire
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes, Words
from deepshare.private.engines.gateshare.lot import Batch, Holder, Lot, LotBatch
from deepshare.private.engines.gateshare.protocols.comparison import pack, packed_size, unpack
from deepshare.private.engines.gateshare.protocols.transfers import Transfers, transfer_cost
from deepshare.private.runtime.outcome import Part

DIGIT = 4
_WORD = 4  # bytes: 16 values of a digit, two bits each
_EVEN = np.uint32(0x55555555)
_EXCHANGE = 1 << 15  # bytes that a party sends before it reads: what the buffers of a connection hold in any case
_TRIPLE = 4  # bits that are kept of a merge: B, B', A B, A B'; A is expanded

Digits = NDArray[np.uint8]


# Sizes


def carry_bits(bits: int) -> int:
    """k for numbers of so many bits, rounded up: what a comparison costs does not depend on ranges in most networks."""
    return next(k for k in (37, 49, 64) if bits <= k)


def digit_count(bits: int) -> int:
    """d."""
    return -(-(bits - 1) // DIGIT)


def levels(digits: int) -> Iterator[int]:
    """Merges of each level, for one gate."""
    while digits > 1:
        yield digits // 2
        digits -= digits // 2


def carry_bytes(comparisons: int, bits: int, party: Holder) -> dict[str, int]:
    """Size of what a party keeps of steps 1 and 2."""
    digits = digit_count(bits)
    leaves = _WORD * comparisons * digits if party == "server" else packed_size(2 * comparisons * digits)
    return {"leaves": leaves, "triples": packed_size(_TRIPLE * comparisons * (digits - 1))}


def carry_transfers(comparisons: int, bits: int) -> tuple[list[int], list[int]]:
    """Transfers of steps 1 and 2, call by call: those that the server sends, and those that the client sends."""
    merges = comparisons * (digit_count(bits) - 1)
    return [comparisons * (bits - 1), merges], [merges]


def carry_making(comparisons: int, bits: int) -> Part:
    """Bytes of steps 1 and 2."""
    by_server, by_client = carry_transfers(comparisons, bits)
    return transfer_cost(by_server, by_client) if comparisons else Part()


def carry_cost(comparisons: int, bits: int) -> Part:
    """Bytes and rounds of steps 3 and 4."""
    digits = digit_count(bits)
    each = sum(packed_size(comparisons * (3 * merges - 1)) for merges in levels(digits))
    rounds = -(-len(list(levels(digits))) // 2)
    return Part(server_bytes=comparisons * _sent_bytes(bits) + each, client_bytes=each, rounds=rounds)


def _sent_bytes(bits: int) -> int:
    """Bytes of step 3 for a gate: a top digit of fewer bits has fewer values."""
    rest = (bits - 1) % DIGIT or DIGIT
    return _WORD * (digit_count(bits) - 1) + packed_size(2 << rest)


# Before the images


def make_carries(number: int, bits: int, own: Tensor, lot: LotBatch, transfers: Transfers) -> None:
    """Do steps 1 and 2.

    Args:
        number: Of the step.
        bits: k.
        own: z_C of all images, (images * comparisons,); for the server its size counts.
        lot: This party's halves, to be filled.
        transfers: With the other party.
    """
    count, digits, party = len(own), digit_count(bits), transfers.party
    if party == "server":
        zero, one = transfers.sender.random(count * (bits - 1))
        pads = _pads(zero[:, 0], one[:, 0], count, bits)
        lot.put("leaves", number, torch.from_numpy(pads.view(np.int32)).view(lot.images, -1))
    else:
        c = _client_bits(own, bits)
        keys = transfers.receiver.random(c.reshape(-1))
        lot.put_bits("leaves", number, _own_pads(keys[:, 0], c, bits))
    A = lot.coins("triple", number, count // lot.images * (digits - 1))
    if party == "server":
        sent = transfers.sender.bits(len(A), 2)
        chosen = transfers.receiver.bits(A, 2)
    else:
        chosen = transfers.receiver.bits(A, 2)
        sent = transfers.sender.bits(len(A), 2)
    kept, other, got = (np.stack([unpack(plane, len(A)) for plane in planes]) for planes in (*sent, chosen))
    B = kept ^ other
    AB = (A & B) ^ kept ^ got
    lot.put_bits("triples", number, np.concatenate([B, AB]).T)


def _pads(zero: Words, one: Words, count: int, bits: int) -> NDArray[np.uint32]:
    """All pads of every digit, (count, digits): those of values that the top digit cannot have are 0."""
    keys = [key.astype(np.uint32).reshape(count, bits - 1) for key in (zero, one)]
    pads = np.zeros((count, digit_count(bits)), np.uint32)
    for place in range(bits - 1):
        where = np.uint32(sum(3 << (2 * value) for value in range(1 << DIGIT) if value >> (place % DIGIT) & 1))
        pads[:, place // DIGIT] ^= (keys[0][:, place] & ~where) ^ (keys[1][:, place] & where)
    return pads & _possible(bits)


def _own_pads(keys: Words, c: Bits, bits: int) -> Bits:
    """The client's pads, (count, digits, 2) flat."""
    key = keys.astype(np.uint32).reshape(c.shape)
    pads = np.zeros((len(c), digit_count(bits)), np.uint32)
    for place in range(bits - 1):
        pads[:, place // DIGIT] ^= key[:, place]
    return _two_bits(pads, _digits(c)).reshape(-1)


def _possible(bits: int) -> NDArray[np.uint32]:
    """For each digit the bits of a word that belong to values which it can have."""
    words = np.full(digit_count(bits), 0xFFFFFFFF, np.uint32)
    if rest := (bits - 1) % DIGIT:
        words[-1] = (1 << (2 << rest)) - 1
    return words


# With the images


@dataclass(frozen=True, eq=False, kw_only=True)
class Carries(Batch):
    """One party's half of the comparisons of one step.

    Attributes:
        bits: k.
        own: (images, comparisons), of the client z_C, of the server what eps lacks of z_S.
        flips: (images, comparisons), b_C or b_S.
        leaves: (images, comparisons, digits), of the server all pads, of the client two bits of a digit.
        chosen: (images, comparisons, digits), of the server G_S and P_S in two bits; of the client None.
        triples: (images, comparisons, merges), A, B, B', A B, A B' from the lowest bit on.
    """

    bits: int
    own: Tensor
    flips: Tensor
    leaves: Tensor
    chosen: Tensor | None
    triples: Tensor

    def share(self, eps: Tensor, party: Holder, wire: Wire, number: int) -> Bits:
        """Do steps 3 to 5: this party's share of h, (images * comparisons,).

        Args:
            eps: x less both masks; for the client its size counts.
            party: The party.
            wire: The connection to the other.
            number: Of the step.
        """
        if party == "server":
            z = _words(eps + self.own.reshape(-1))
            G, P = self._send_leaves(z, wire, number)
            h = (z >> np.uint64(self.bits - 1)) & np.uint64(1) == 0
        else:
            z = _words(self.own.reshape(-1))
            G, P = self._open_leaves(wire, number)
            h = (z >> np.uint64(self.bits - 1)) & np.uint64(1) == 1
        carry = self._merge(G, P, party, wire, number)
        share: Bits = h ^ carry ^ self.flips.reshape(-1).numpy()
        return share

    def _send_leaves(self, z: Words, wire: Wire, number: int) -> tuple[Digits, Digits]:
        """Do step 3 for the server; returns G_S and P_S, (digits, count)."""
        s = _digits(_low_bits(z, self.bits)).astype(np.uint32)
        own = _flat(self.chosen).numpy() if self.chosen is not None else np.empty(0, np.uint8)
        greater = _EVEN & ((np.uint32(1) << (2 * s)) - np.uint32(1))
        equal = np.uint32(2) << (2 * s)
        shares = np.array([0, _EVEN, _EVEN << np.uint32(1), 0xFFFFFFFF], np.uint32)[own]
        words = (greater ^ equal ^ shares) & _possible(self.bits)
        data = (words ^ _flat(self.leaves).numpy().view(np.uint32)).view(np.uint8)
        wire.send(number, data[:, : _sent_bytes(self.bits)])
        return _split(own.T)

    def _open_leaves(self, wire: Wire, number: int) -> tuple[Digits, Digits]:
        """Do step 3 for the client; returns G_C and P_C, (digits, count)."""
        leaves = _flat(self.leaves).numpy()
        each = _sent_bytes(self.bits)
        data = np.zeros((len(leaves), _WORD * leaves.shape[1]), np.uint8)
        data[:, :each] = wire.receive(number, len(leaves) * each).reshape(-1, each)
        two = _two_bits(data.view(np.uint32), _digits(_client_bits(self.own.reshape(-1), self.bits)))
        return _split((two[..., 0].view(np.uint8) + 2 * two[..., 1].view(np.uint8) ^ leaves).T)

    def _merge(self, G: Digits, P: Digits, party: Holder, wire: Wire, number: int) -> Bits:
        """Do step 4; returns a share of G of all digits."""
        triples = np.ascontiguousarray(_flat(self.triples).numpy().T)
        for merges in levels(len(G)):
            A, B, B2, AB, AB2 = (triples[:merges] >> place & 1 for place in range(5))
            triples = triples[merges:]
            high, low, rest = slice(1, 2 * merges, 2), slice(0, 2 * merges, 2), slice(2 * merges, None)
            mine = np.concatenate([P[high] ^ A, G[low] ^ B, (P[low] ^ B2)[1:]])
            theirs = _exchange(pack(mine.reshape(-1).view(np.bool_)), wire, number)
            opened = mine ^ unpack(theirs, mine.size).view(np.uint8).reshape(mine.shape)
            p_hi, g_lo, p_lo = np.split(opened, [merges, 2 * merges])
            g = G[high] ^ AB ^ (p_hi & B) ^ (g_lo & A)
            p = (AB2 ^ (p_hi & B2))[1:] ^ (p_lo & A[1:])
            if party == "server":
                g ^= p_hi & g_lo
                p ^= p_hi[1:] & p_lo
            G, P = np.concatenate([g, G[rest]]), np.concatenate([P[:1], p, P[rest]])
        return np.ascontiguousarray(G[0]).view(np.bool_)


def read_carries(number: int, bits: int, own: Tensor, lot: LotBatch, party: Holder) -> Carries:
    """A party's comparisons of a step out of its lots; `own` is (images, comparisons) as in `Carries`."""
    parts, row = [], 0
    for one, rows in lot.parts:
        whole = _read(number, bits, own.shape[1], one, party).select(rows)
        parts.append(Carries(**{**vars(whole), "own": own[row : row + len(rows)]}))
        row += len(rows)
    return Carries.concat(parts)


def _read(number: int, bits: int, each: int, lot: Lot, party: Holder) -> Carries:
    count, digits = lot.images * each, digit_count(bits)
    shape = (lot.images, each, digits)
    if party == "server":
        leaves = torch.from_numpy(lot.pieces[number, "leaves"].view(np.int32)).view(shape)
        coins = lot.coins("leaf", number, 2 * each * digits).reshape(-1, 2)
        chosen = torch.from_numpy(_joined(coins)).view(shape)
    else:
        leaves = torch.from_numpy(_joined(unpack(lot.pieces[number, "leaves"], 2 * count * digits).reshape(-1, 2)))
        leaves, chosen = leaves.view(shape), None
    merges = count * (digits - 1)
    kept = unpack(lot.pieces[number, "triples"], _TRIPLE * merges).reshape(-1, _TRIPLE)
    A = lot.coins("triple", number, each * (digits - 1))
    triples = torch.from_numpy(_joined(np.concatenate([A[:, None], kept], 1)))
    return Carries(
        bits=bits,
        own=torch.empty(lot.images, 0),
        flips=torch.from_numpy(lot.coins("gate", number, each)).view(lot.images, each),
        leaves=leaves,
        chosen=chosen,
        triples=triples.view(lot.images, each, digits - 1),
    )


def _exchange(mine: Bytes, wire: Wire, number: int) -> Bytes:
    """Send and receive as many bytes, in parts so small that neither waits for the other to read."""
    parts = []
    for begin in range(0, len(mine), _EXCHANGE):
        part = mine[begin : begin + _EXCHANGE]
        wire.send(number, part)
        parts.append(wire.receive(number, len(part)))
    return np.concatenate(parts) if parts else mine


def _words(numbers: Tensor) -> Words:
    return numbers.contiguous().numpy().view(np.uint64)


def _low_bits(z: Words, bits: int) -> Bits:
    """The bits below the top, (count, bits - 1)."""
    return (z[:, None] >> np.arange(bits - 1, dtype=np.uint64) & np.uint64(1)).astype(np.bool_)


def _client_bits(z_C: Tensor, bits: int) -> Bits:
    """The bits of c, (count, bits - 1)."""
    return ~_low_bits(_words(z_C), bits)


def _digits(low: Bits) -> Digits:
    """Digits (count, digits) of bits (count, m), the lowest first."""
    count, m = low.shape
    padded = np.zeros((count, -(-m // DIGIT) * DIGIT), np.bool_)
    padded[:, :m] = low
    return _joined(padded.reshape(count, -1, DIGIT))


def _joined(bits: Bits) -> Digits:
    """Small numbers of bits along the last dimension, the lowest first."""
    places = 1 << np.arange(bits.shape[-1], dtype=np.uint8)
    joined: Digits = (bits.view(np.uint8) * places).sum(-1, dtype=np.uint8)
    return joined


def _two_bits(words: NDArray[np.uint32], digits: Digits) -> Bits:
    """Of each word the two bits that belong to a digit: (..., 2)."""
    two = words >> (2 * digits.astype(np.uint32))
    return np.stack([two & np.uint32(1), two >> np.uint32(1) & np.uint32(1)], -1).astype(np.bool_)


def _split(two: Digits) -> tuple[Digits, Digits]:
    return np.ascontiguousarray(two & 1), np.ascontiguousarray(two >> 1 & 1)


def _flat(values: Tensor) -> Tensor:
    """(images, comparisons, n) as (images * comparisons, n)."""
    return values.reshape(-1, values.shape[-1]).contiguous()
