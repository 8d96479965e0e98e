"""Masks of gates from oblivious transfers, without a dealer: one transfer a gate and direction, whatever shares it.

Letters as in `gate`. b = b_S xor b_C, each party draws its bit of every gate; sign = 1 - 2 (its bit). F expands a key
to ring elements, one for each neuron of the gate at every activation that uses it.

Before the images, for a leader and its followers together
    1. transfers          the server has keys k0, k1 of each gate, the client k of its choice b_C
       server             a_S = sign_S (F(k1) - F(k0)), s_S = -F(k0)
       client             s_C = F(k);  s_S + s_C = sign_S a_S b_C
    2. transfers          the same the other way: a_C = sign_C (F(k1') - F(k0')), r_C = -F(k0'), r_S = F(k')
    3. server -> client   d = F(k0) - F(k1) + sign_S, at a place of its own                  8 bytes a gate
       both               b_S' = b_S - F(k0), b_C' = F(k) + b_C d  ("bit", arithmetic shares of b)
    4. both               Ab = a (its bit) + s + r  ("masked")

A b = a_S b_S + sign_S a_S b_C + a_C b_C + sign_C a_C b_S, since b = b_S + sign_S b_C = b_C + sign_C b_S. Masks are what
the transfers give, so nothing is sent for a neuron. The other party lacks one of the two keys: they are random to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.base_ot import RECEIVER_BYTES, SENDER_BYTES, Wire
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Words
from deepshare.private.engines.gateshare.crypto.ot import DONE_BYTES, Index, OtReceiver, OtSender, extension_bytes
from deepshare.private.engines.gateshare.lot import Holder, LotBatch
from deepshare.private.runtime.outcome import Part

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Both directions of oblivious transfer with the other party.

    Attributes:
        party: This one.
        wire: The connection to the other.
        step: The number of the frames on it.
    """

    party: Holder
    wire: Wire
    step: int
    sender: OtSender
    receiver: OtReceiver

    @classmethod
    def begin(cls, wire: Wire, step: int, party: Holder) -> Self:
        """Begin two sessions; the server is the first to send."""
        if party == "server":
            sender, receiver = OtSender.begin(wire, step), OtReceiver.begin(wire, step)
        else:
            receiver, sender = OtReceiver.begin(wire, step), OtSender.begin(wire, step)
        return cls(party, wire, step, sender, receiver)

    def random(self, choices: Bits) -> tuple[tuple[Words, Words], Words]:
        """Random transfers in both directions, one a choice: keys k0 and k1 as the sender, k as the receiver."""
        if self.party == "server":
            keys, chosen = self.sender.random(len(choices)), self.receiver.random(choices)
        else:
            chosen, keys = self.receiver.random(choices), self.sender.random(len(choices))
        return keys, chosen


def base_cost() -> Part:
    """Bytes of `Transfers.begin`: base transfers in both directions."""
    return Part(server_bytes=SENDER_BYTES + RECEIVER_BYTES, client_bytes=SENDER_BYTES + RECEIVER_BYTES)


def transfer_cost(by_server: Iterable[int], by_client: Iterable[int]) -> Part:
    """Bytes of random transfers, call by call, that the one party sends and the other receives."""
    cost = Part()
    for count in by_server:
        cost += Part(server_bytes=DONE_BYTES, client_bytes=extension_bytes(count))
    for count in by_client:
        cost += Part(server_bytes=extension_bytes(count), client_bytes=DONE_BYTES)
    return cost


def gate_cost(gates: int) -> Part:
    """Bytes of steps 1 to 3."""
    return transfer_cost([gates], [gates]) + Part(server_bytes=8 * gates) if gates else Part()


def make_gate_masks(leader: int, gates: int, sites: Mapping[int, Tensor], lot: LotBatch, transfers: Transfers) -> None:
    """Do steps 1 to 4.

    Args:
        leader: Number of the leader's step.
        gates: Its gates for each image.
        sites: By step number, of the leader and its followers, the gate of every neuron of all images, numbered from 0.
        lot: This party's halves, to be filled.
        transfers: With the other party.
    """
    bit = lot.coins("gate", leader, gates)
    (zero, one), chosen = transfers.random(bit)
    sign = 1 - 2 * bit.astype(np.int64)
    place = len(bit)
    for number, gate in sites.items():
        index = gate.reshape(-1).numpy()
        kept, other = (_numbers(transfers.sender.expand(keys, index, place)) for keys in (zero, one))
        a = sign[index] * (other - kept)
        masked = a * bit[index] - kept + _numbers(transfers.receiver.expand(chosen, index, place))
        for name, values in (("neurons", a), ("masked", masked)):
            lot.put(name, number, torch.from_numpy(values).view(lot.images, -1))
        place += len(index)
    shares = torch.from_numpy(_arithmetic(bit, sign, (zero, one), chosen, transfers))
    lot.put("bit", leader, shares.view(lot.images, -1))


def _arithmetic(bit: Bits, sign: Numbers, keys: tuple[Words, Words], chosen: Words, transfers: Transfers) -> Numbers:
    """Do step 3: arithmetic shares of b."""
    each: Index = np.arange(len(bit))
    if transfers.party == "server":
        kept, other = (_numbers(transfers.sender.expand(one, each, 0)) for one in keys)
        transfers.wire.send(transfers.step, kept - other + sign)
        return bit - kept
    d = transfers.wire.receive(transfers.step, 8 * len(bit)).view(np.int64)
    return _numbers(transfers.receiver.expand(chosen, each, 0)) + bit * d


def _numbers(words: Words) -> Numbers:
    return words.view(np.int64)
