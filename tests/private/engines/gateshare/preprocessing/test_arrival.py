"""Lots whose pieces are sent as they are dealt, and used as they arrive."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing.arrival import LotSender, receive_arriving
from deepshare.private.engines.gateshare.preprocessing.dealer import ServerLotsFromDealer
from deepshare.private.engines.gateshare.protocols.schedule import LOT_START, receive_lot
from deepshare.private.ir.trace import translate
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.trial import SIZE, Trial, shared_resnet


@pytest.fixture(scope="module")
def trial() -> Trial:
    torch.manual_seed(62)
    return Trial(translate(shared_resnet(), SIZE))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    for one in (left, right):
        one.settimeout(20)
    with left, right:
        yield Channel(left, "client"), Channel(right, "dealer")


def test_frames_are_those_of_a_lot_that_is_sent_at_once(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    lot, sender = trial.dealer.deal(2)[1], LotSender(ends[0], trial.public, "client")
    sender.begin(lot)
    for step in trial.public.steps:
        sender.step(step.number, lot)
    found = receive_lot(ends[1], trial.public, 2, "client")
    sender.finish()
    assert (found.id, found.seed, set(found.pieces)) == (lot.id, lot.seed, set(lot.pieces))
    assert all(np.array_equal(found.pieces[piece], data) for piece, data in lot.pieces.items())
    assert ends[0].sent == trial.public.lot_bytes(2, "client")


def test_a_party_works_with_pieces_before_the_last_is_dealt(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    lot = trial.dealer.deal(1)[1]
    first, *others = trial.public.dealt_bytes(1, "client")
    assert others
    ends[0].send(LOT_START, lot.id, lot.seed)
    ends[0].send(first[0], lot.pieces[first])
    found, pieces = receive_arriving(ends[1], trial.public, 1, "client")
    assert np.array_equal(found.pieces[first], lot.pieces[first])
    assert set(pieces) == set(lot.pieces) and all(piece in pieces for piece in others)
    for piece in others:  # the reading thread takes them
        ends[0].send(piece[0], lot.pieces[piece])
    pieces.wait()
    pieces[0, "more"] = np.zeros(3, np.uint8)
    assert len(pieces[0, "more"]) == 3 and len(pieces) == len(lot.pieces) + 1
    del pieces[0, "more"]
    assert (0, "more") not in pieces
    mine, same = (trial.client.preprocess(one, bytes(32)) for one in (found, lot))
    assert torch.equal(mine.logits, same.logits)


def test_a_dealer_that_is_gone_is_missed_at_the_piece_that_is_wanting(
    trial: Trial, ends: tuple[Channel, Channel]
) -> None:
    lot = trial.dealer.deal(1)[1]
    ends[0].send(LOT_START, lot.id, lot.seed)
    ends[0].close()
    found, _ = receive_arriving(ends[1], trial.public, 1, "client")
    with pytest.raises(ConnectionError, match="connection to the dealer was lost"):
        trial.client.preprocess(found, fresh_seed())


def test_a_wrong_piece_is_refused_and_none_after_it_is_waited_for(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    lot = trial.dealer.deal(1)[1]
    first, *others = trial.public.dealt_bytes(1, "client")
    ends[0].send(LOT_START, lot.id, lot.seed)
    ends[0].send(first[0], lot.pieces[first][:-1])
    found, _ = receive_arriving(ends[1], trial.public, 1, "client")
    for piece in (first, *others):
        with pytest.raises(EngineError, match=r"has .* bytes, not"):
            found.pieces[piece]


def test_a_party_that_is_gone_ends_the_dealing(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    lot, sender = Lot(bytes(16), bytes(32), 1), LotSender(ends[0], trial.public, "client")
    ends[1].close()
    sender.begin(lot)
    with pytest.raises(ConnectionError, match="connection to the client was lost"):
        sender.finish()


def test_the_next_lot_begins_after_all_of_the_last(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    lots, stock = [trial.dealer.deal(1)[0] for _ in range(2)], ServerLotsFromDealer(trial.public, ends[1])
    sender = LotSender(ends[0], trial.public, "server")
    for lot in lots:
        sender.begin(lot)
        for step in trial.public.steps:
            sender.step(step.number, lot)
    for lot in lots:
        stock.expect(1)
        (found,) = stock.take_all([lot.id])
        assert all(np.array_equal(found.pieces[piece], data) for piece, data in lot.pieces.items())
    sender.finish()


def test_a_lot_that_the_client_cannot_use_is_not_kept(trial: Trial, ends: tuple[Channel, Channel]) -> None:
    wanted = [2, 1, 1]  # one image of the first can be used, none of the second
    lots, stock = [trial.dealer.deal(images)[0] for images in wanted], ServerLotsFromDealer(trial.public, ends[1])
    sender = LotSender(ends[0], trial.public, "server")
    for lot in lots:
        sender.begin(lot)
        for step in trial.public.steps:
            sender.step(step.number, lot)
    for images in wanted:
        stock.expect(images)
    sender.finish()
    assert [stock.is_fresh(lot.id) for lot in lots] == [True, False, True]
