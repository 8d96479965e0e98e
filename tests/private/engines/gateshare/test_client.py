"""The client's batches of several lots, and what it refuses of a server."""

import json
import socket
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.client import ClientMaterial, ClientSession
from deepshare.private.engines.gateshare.cost_model import PartyMeter
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.ir.trace import translate
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    curved_resnet,
    shared_resnet,
)

PROGRAM = translate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4))


@pytest.mark.parametrize("network", [shared_resnet, curved_resnet])
def test_a_batch_of_several_lots_with_images_left_out(network: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    trial = Trial(translate(network(), SIZE))
    dealt = [trial.dealer.deal(3), trial.dealer.deal(1), trial.dealer.deal(2)]
    rows = [[0, 2], [0], [1]]
    material, mine = [], []
    for (_, lot), chosen in zip(dealt, rows, strict=True):
        material.append(trial.client.preprocess(lot, fresh_seed()).select(chosen))
        mine.append({number: value[chosen] for number, value in trial.public.seen.items()})
    shares = {number: torch.cat([part[number] for part in mine]) for number in mine[0]}
    images = torch.randn(4, *SIZE)
    lots = [(lot, chosen) for (lot, _), chosen in zip(dealt, rows, strict=True)]
    run = trial.online(images, lots, ClientMaterial.concat(material), shares)
    assert torch.equal(run.logits - run.noise, fixed.evaluate(trial.schedule, images, run.shares))


def test_a_lot_that_cannot_be_used_is_gone_before_the_next_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, dealt = Trial(PROGRAM), list[weakref.ref[Lot]]()
    preprocess = trial.client.preprocess

    class Source:
        def check(self, images: int) -> None: ...

        def discard(self, name: bytes) -> None: ...

        def dealt_bytes(self, lot: Lot) -> int:
            return 0

        def get(self, images: int) -> list[Lot]:
            assert not any(lot() for lot in dealt)
            lot = trial.dealer.deal(images)[1]
            dealt.append(weakref.ref(lot))
            keys.append(weakref.ref(lot.pieces[next(iter(lot.pieces))]))
            assert not any(key() is not None for key in keys[:-1])
            return [lot]

    def unusable_at_first(lot: Lot, seed: bytes) -> ClientMaterial:
        return replace(preprocess(lot, seed), unsafe=torch.tensor([len(dealt) < 3]))

    keys = list[weakref.ref[Any]]()
    monkeypatch.setattr(trial.client, "preprocess", unusable_at_first)
    left, right = socket.socketpair()
    with left, right:
        peer = Channel(right, "client")
        peer.send_message({"spent": []})
        peer.send_message({"go": 1})
        channel = Channel(left, "server")
        material = ClientSession(trial.client, channel, Source(), PartyMeter([channel], "client_bytes")).prepare(1)
    assert len(dealt) == 3 and material.usable == [0]


@pytest.mark.parametrize("spent", [None, 5, "0000", {"name": 1}])
def test_a_server_that_does_not_say_what_is_spent_is_refused(spent: Any) -> None:
    class Source:
        def check(self, images: int) -> None: ...

        def discard(self, name: bytes) -> None: ...

        def dealt_bytes(self, lot: Lot) -> int:
            return 0

        def get(self, images: int) -> list[Lot]:
            return [trial.dealer.deal(images)[1]]

    trial = Trial(PROGRAM)
    data = json.dumps({"spent": spent}).encode()
    left, right = socket.socketpair()
    with left, right:
        right.sendall(HEADER.pack(bytes(16), 0, MESSAGE, len(data)) + data)
        right.shutdown(socket.SHUT_WR)
        channel = Channel(left, "server")
        asking = ClientSession(trial.client, channel, Source(), PartyMeter([channel], "client_bytes"))
        with pytest.raises(EngineError, match="does not say which lots are spent"):
            asking.ask(torch.zeros(1, 1, 4, 4))
