"""Comparison by carries and masks of gates, made by oblivious transfers between two ends of a socket."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.base_ot import RECEIVER_BYTES, SENDER_BYTES
from deepshare.private.engines.gateshare.crypto.ot import DONE_BYTES, extension_bytes
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot, LotBatch
from deepshare.private.engines.gateshare.protocols.carry import (
    carry_bits,
    carry_bytes,
    carry_cost,
    carry_transfers,
    make_carries,
    read_carries,
)
from deepshare.private.engines.gateshare.protocols.transfers import Transfers, make_gate_masks
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends, well

PARTIES: tuple[Holder, Holder] = ("server", "client")
BASE = SENDER_BYTES + RECEIVER_BYTES
"""Each party is the sender of base transfers once and the receiver once."""


def lots(images: int) -> dict[Holder, Lot]:
    name = bytes(ID_BYTES)
    return {party: Lot(name, fresh_seed(), images) for party in PARTIES}


def edges(bits: int, count: int) -> tuple[Tensor, Tensor]:
    """Shares z_S, z_C of numbers of so many bits: 0, -1, the extremes, and random ones, each with many z_C."""
    top = 1 << (bits - 1)
    x = torch.cat([torch.tensor([0, -1, 1, top - 1, -top, -top + 1, 1 - top]), torch.randint(-top, top, (count - 7,))])
    x = x[torch.randperm(count)]
    z_C = torch.randint(-(2**63), 2**63 - 1, (count,))
    z_C[:4], z_C[4:8] = 0, -1
    return x - z_C, z_C


def whole_lot(lot: Lot) -> LotBatch:
    """All images of a lot."""
    return LotBatch([(lot, range(lot.images))])


@pytest.mark.parametrize("bits", [6, 9, 32, 37, 49, 63])
def test_every_bit_is_that_of_the_clear_and_every_byte_is_counted(bits: int) -> None:
    images, each = 3, 40
    z_S, z_C = edges(bits, images * each)
    eps = torch.randint(-(2**63), 2**63 - 1, z_S.shape)
    halves = lots(images)
    seen: dict[Holder, tuple[int, int, int]] = {}

    def run(party: Holder, channel: Channel) -> Any:
        transfers, lot = Transfers.begin(channel, 9, party), halves[party]
        begun = channel.sent
        make_carries(5, bits, z_C if party == "client" else torch.zeros_like(z_C), whole_lot(lot), transfers)
        assert {name: len(data) for (_, name), data in lot.pieces.items()} == carry_bytes(len(z_C), bits, party)
        made = channel.sent
        own = z_C if party == "client" else z_S - eps
        keys = read_carries(5, bits, own.view(images, each), LotBatch([(lot, range(images))]), party)
        h = keys.share(eps, party, channel, 5)
        seen[party] = begun, made - begun, channel.sent - made
        return h, transfers.sender

    ends = well(at_both_ends(lambda channel: run("server", channel), lambda channel: run("client", channel)))
    (h_S, from_server), (h_C, from_client) = ends.results
    b_S, b_C = (halves[party].coins("gate", 5, each) for party in PARTIES)
    x = z_S + z_C
    low = x << (64 - bits) >> (64 - bits)
    assert ((h_S ^ h_C ^ b_S ^ b_C) == (low >= 0).numpy()).all()

    server, client = carry_transfers(len(x), bits)
    assert (from_server.transfers, from_client.transfers) == (sum(server), sum(client))
    answers = [DONE_BYTES * len(server), DONE_BYTES * len(client)]
    offline = [
        answers[0] + sum(extension_bytes(count) for count in client),
        answers[1] + sum(extension_bytes(count) for count in server),
    ]
    cost = carry_cost(len(x), bits)
    assert seen == {
        "server": (BASE, offline[0], cost.server_bytes),
        "client": (BASE, offline[1], cost.client_bytes),
    }


def test_a_comparison_costs_the_same_for_most_ranges() -> None:
    assert [carry_bits(bits) for bits in (32, 34, 37, 38, 46, 50)] == [37, 37, 37, 49, 49, 64]
    assert carry_cost(8, 37) == Part(server_bytes=8 * 36 + 20, client_bytes=20, rounds=2)
    assert carry_cost(8, 49).rounds == carry_cost(8, 64).rounds == 2
    assert carry_transfers(1, 37) == ([36, 8], [8])


def test_rows_of_several_lots_go_together() -> None:
    bits, each = 32, 12
    z_S, z_C = edges(bits, 4 * each)
    first, second = lots(3), lots(2)

    def run(party: Holder, channel: Channel) -> Any:
        transfers = Transfers.begin(channel, 0, party)
        for pair, rows in ((first, [0, 1, 2]), (second, [0, 1])):
            # Images 1 and 2 of the first lot are used, and both of the second.
            z = torch.zeros(len(rows), each, dtype=torch.int64)
            if party == "client":
                z[1 if pair is first else 0 :] = z_C.view(4, each)[:2] if pair is first else z_C.view(4, each)[2:]
            make_carries(1, bits, z.view(-1), whole_lot(pair[party]), transfers)
        batch = LotBatch([(first[party], [1, 2]), (second[party], [0, 1])])
        own = (z_C if party == "client" else z_S).view(4, each)
        keys = read_carries(1, bits, own, batch, party)
        return keys.share(torch.zeros(4 * each, dtype=torch.int64), party, channel, 1)

    h_S, h_C = well(at_both_ends(lambda end: run("server", end), lambda end: run("client", end))).results
    b = [np.concatenate([one[party].coins("gate", 1, each) for one in (first, second)]) for party in PARTIES]
    used = np.r_[each : 3 * each, 3 * each : 5 * each]
    assert ((h_S ^ h_C ^ b[0][used] ^ b[1][used]) == ((z_S + z_C) << 32 >> 32 >= 0).numpy()).all()


def test_large_messages_cross_without_a_deadlock() -> None:
    bits, each = 32, 400_000
    z_S, z_C = edges(bits, each)
    halves = lots(1)

    def run(party: Holder, channel: Channel) -> Any:
        for name, size in carry_bytes(each, bits, party).items():
            halves[party].pieces[5, name] = np.zeros(size, np.uint8)
        own = (z_C if party == "client" else z_S).view(1, each)
        keys = read_carries(5, bits, own, LotBatch([(halves[party], [0])]), party)
        keys.share(torch.zeros(each, dtype=torch.int64), party, channel, 5)

    ends = well(at_both_ends(lambda channel: run("server", channel), lambda channel: run("client", channel)))
    cost = carry_cost(each, bits)
    assert ends.sent == [cost.server_bytes, cost.client_bytes] and cost.client_bytes > 800_000


def test_a_gate_masks_all_neurons_that_share_it() -> None:
    images, gates = 2, 30
    index = torch.arange(images * gates)
    # A leader whose gates serve five neurons each, and a follower with other neighbours.
    sites = {3: index.repeat_interleave(5), 8: index.view(images, gates).flip(1).repeat(1, 4).reshape(-1)}
    halves = lots(images)

    def run(party: Holder, channel: Channel) -> Any:
        transfers = Transfers.begin(channel, 0, party)
        begun = channel.sent
        make_gate_masks(3, gates, sites, whole_lot(halves[party]), transfers)
        return channel.sent - begun, transfers.sender.transfers

    ends = well(at_both_ends(lambda channel: run("server", channel), lambda channel: run("client", channel)))
    both = DONE_BYTES + extension_bytes(len(index))
    assert ends.results == [(both + 8 * len(index), len(index)), (both, len(index))]
    b = torch.from_numpy(halves["server"].coins("gate", 3, gates) ^ halves["client"].coins("gate", 3, gates)).long()

    def whole(name: str, number: int) -> Tensor:
        server, client = (halves[party].correction(name, number, (-1,)).view(-1) for party in PARTIES)
        return server + client

    assert torch.equal(whole("bit", 3), b)
    for number, gate in sites.items():
        assert torch.equal(whole("masked", number), whole("neurons", number) * b[gate])
    assert 0 < b.sum() < len(b)
