"""Bijection: a party's view fits any secret of the other, as masks exist that explain another image or another model.

The keys of comparisons hide their thresholds computationally, which no such test can show; here a comparison gives what
an ideal one would.
"""

from typing import Any

import pytest
import torch

from deepshare.private.engines.gateshare import reference
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.protocols import comparison, local
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.protocols.explanations import (
    IMAGES,
    ForClient,
    ForServer,
    Replay,
    World,
    other_model,
)
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    curved_resnet,
    excited,
    shared_resnet,
    truncated_shares,
)


@pytest.fixture(scope="module", params=[shared_resnet, curved_resnet, excited])
def world(request: pytest.FixtureRequest) -> World:
    torch.manual_seed(7)
    trial = Trial(translate(request.param(), SIZE))
    images = torch.randn(IMAGES, *SIZE)
    server_lot, client_lot = trial.dealer.deal(IMAGES)
    material = trial.client.preprocess(client_lot, bytes(32))
    mine = dict(trial.public.seen)
    run = trial.online(images, [(server_lot, range(IMAGES))], material, mine)
    return World(trial, images, server_lot, client_lot, material.openings, run, dict(trial.schedule.seen), mine)


@pytest.fixture(autouse=True)
def ideal_comparisons(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Lots that are explained have ideal comparisons."""
    monkeypatch.setattr(comparison, "read_keys", lambda number, bits, each, lot: lot.ideals[number])


def test_what_the_server_sees_fits_another_image(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    images = 2 * torch.randn(IMAGES, *SIZE)
    finder, client_party = ForClient(world, images), world.trial.client
    lot: Any = finder.find()
    monkeypatch.setattr(local, "mask", lambda seed, shape: finder.x_C)
    material = client_party.preprocess(lot, bytes(32))
    shares = truncated_shares(world.trial.schedule, world.trial.public.seen)
    assert material.openings.keys() == world.openings.keys()
    for piece, tensor in material.openings.items():
        assert torch.equal(tensor, world.openings[piece]), piece
    client = Replay(world.run.from_server)
    logits = client_party.infer(images, material, client, LayerMeter([client], "client_bytes", 99))
    assert client.messages == world.run.from_client
    assert torch.equal(logits - world.run.noise, reference.evaluate(world.trial.schedule, images, shares))
    assert not torch.equal(logits, world.run.logits)


def test_what_the_client_sees_but_the_logits_fits_another_model(world: World) -> None:
    program = other_model(world.trial.program)
    finder = ForServer(world, program)
    lot: Any = finder.find()
    material = finder.server.preprocess([(lot, range(IMAGES))], world.openings)
    server = Replay(world.run.from_client)
    noise = finder.server.infer(material, server, LayerMeter([server], "server_bytes", 99))
    assert server.messages[:-1] == world.run.from_server[:-1]
    shares = truncated_shares(finder.steps, world.client_shares)
    output = finder.steps.output
    logits = finder.steps.seen[output] + world.client_shares[output]
    assert torch.equal(logits, reference.evaluate(finder.steps, world.images, shares))
    assert not torch.equal(logits + noise, world.run.logits)
