"""What a party sees fits any secret of the other: there are masks that explain another image, or another model.

The keys of comparisons hide their thresholds computationally, which no such test can show; here a comparison gives what
an ideal one would.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare import client as clients
from deepshare.private.engines.gateshare import reference, weights
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.crypto.ring import encode, truncate_client, truncate_server
from deepshare.private.engines.gateshare.gating import bits_of_gates, gated
from deepshare.private.engines.gateshare.metering import Layers
from deepshare.private.engines.gateshare.preprocessing.lot import Lot, Piece, unpack
from deepshare.private.engines.gateshare.schedule import (
    Gate,
    Opening,
    Product,
    Schedule,
    Shift,
    Square,
    Step,
    Take,
    alone,
)
from deepshare.private.engines.gateshare.server import Server
from deepshare.private.ir.program import Program, hidden_tensors
from deepshare.private.ir.trace import translate
from tests.private.gateshare.trial import SIZE, Run, Tapped, Trial, Watched, curved_resnet, shared_resnet

IMAGES = 2


@dataclass(eq=False)
class Ideal:
    """A comparison that gives this party's bits as they were seen."""

    images: int
    bits: Bits

    def share(self, hidden: Any, party: str) -> Bits:
        return self.bits

    def only(self, rows: Sequence[int]) -> "Ideal":
        return self


@dataclass(eq=False)
class Explained:
    """A lot whose masks are found, not dealt."""

    images: int = IMAGES
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    ideals: dict[int, Ideal] = field(default_factory=dict)

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        return self.values[name, number]

    correction = mask

    def comparison(self, number: int, step: Gate) -> Ideal:
        return self.ideals[number]


@dataclass(eq=False)
class World:
    """A run, and all that its parties had."""

    trial: Trial
    images: Tensor
    server_lot: Lot
    client_lot: Lot
    ahead: dict[Piece, Tensor]
    run: Run
    server_shares: dict[int, Tensor]
    client_shares: dict[int, Tensor]

    def bits(self, number: int, step: Gate) -> tuple[Bits, Bits]:
        """The bits of both parties for a leader, as they went over the wire."""
        count = self.trial.schedule.steps[number].elements * IMAGES * 8
        from_server = [data for n, data in self.run.from_server if n == number][1]
        from_client = next(data for n, data in self.run.from_client if n == number)[count:]
        return self._unpacked(from_server, step), self._unpacked(from_client, step)

    def _unpacked(self, data: bytes, step: Gate) -> Bits:
        return unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8).numpy(), IMAGES * step.comparisons)

    def numbers(self, messages: list[tuple[int, bytes]], number: int, shape: Sequence[int]) -> Tensor:
        data = next(data for n, data in messages if n == number)
        size = 8 * IMAGES * math.prod(shape)
        return torch.frombuffer(bytearray(data[:size]), dtype=torch.int64).view(IMAGES, *shape)

    def opened(self, number: int) -> Tensor:
        """The hidden gates of a leader."""
        step = self.trial.schedule.steps[number]
        assert isinstance(step, Gate)
        mine, theirs = self.bits(number, step)
        return bits_of_gates(step, mine ^ theirs)


@pytest.fixture(scope="module", params=[shared_resnet, curved_resnet])
def world(request: pytest.FixtureRequest) -> World:
    torch.manual_seed(7)
    trial = Trial(translate(request.param(), SIZE))
    images = torch.randn(IMAGES, *SIZE)
    server_lot, client_lot = trial.dealer.deal(IMAGES)
    prepared = trial.client.prepare(client_lot, bytes(32))
    mine = dict(trial.public.seen)
    run = trial.online(images, [(server_lot, range(IMAGES))], prepared, {}, mine)
    return World(trial, images, server_lot, client_lot, prepared.ahead, run, dict(trial.schedule.seen), mine)


class Replay(Tapped):
    """A channel to a party that says what it said before, whatever it is told."""

    def __init__(self, incoming: list[tuple[int, bytes]]) -> None:
        self.sent, self.messages, self._incoming = 0, [], iter(incoming)

    def _send(self, step: int, views: list[memoryview]) -> None:
        self.messages.append((step, b"".join(views)))

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        said, data = next(self._incoming)
        assert (said, len(data)) == (step, size)
        return np.frombuffer(bytearray(data), np.uint8)


class ForClient:
    """Finds the client's masks that explain another image to the server."""

    def __init__(self, world: World, images: Tensor) -> None:
        self.world, self.lot, self.images = world, Explained(), images
        self.steps, self.first = world.trial.schedule, torch.empty(0)
        self.bits: dict[int, Tensor] = {}
        self.masks = {
            term: weights.masked(self.steps, term, weights.weight_mask(world.trial.dealer.seed, self.steps, term))
            for step in self.steps.steps
            if isinstance(step, Product)
            for term in step.terms
        }

    def find(self) -> Explained:
        Schedule.run(self.steps, self.step)
        return self.lot

    def step(self, number: int, step: Step, inputs: list[Tensor]) -> Tensor:
        match step:
            case Take():
                seen = self.world.numbers(self.world.run.from_client, number, step.shape)
                result = self.first = encode(self.images, step.scale) - seen
            case Product():
                result = self.product(number, step, inputs)
            case Shift(by=by):
                result = truncate_client(inputs[0], by)
            case Opening():
                result = inputs[0]
                self.lot.values["neurons", number] = step.picked(result) - self.world.ahead[number, "neurons"]
            case Square(inputs=(source,)):
                result = self.square(number, step, source)
            case Gate():
                result = self.gate(number, step, inputs[0])
            case _:
                result = alone(step, inputs)
        if number in self.steps.opened:
            self.lot.values["tensor", number] = result - self.world.ahead[number, "tensor"]
        return result

    def product(self, number: int, step: Product, inputs: list[Tensor]) -> Tensor:
        share = -self.world.server_lot.correction("product", number, step.shape)
        total = torch.zeros_like(share)
        for term, source, x in zip(step.terms, step.inputs, inputs, strict=True):
            share += self.masks[term](self.lot.values["tensor", source])
            total += self.world.trial.client._weights[term](x)
        self.lot.values["product", number] = share
        return total + share

    def square(self, number: int, step: Square, source: int) -> Tensor:
        theirs, found, shape = self.world.server_lot, self.lot.values, step.opening.neurons
        own, other = found["neurons", source], theirs.mask("neurons", source, shape)
        masked = (own + other).square() - theirs.correction("masked", number, shape)
        hidden = step.opening.picked(self.world.server_shares[source]) - other + self.world.ahead[source, "neurons"]
        sent = self.world.numbers(self.world.run.from_client, number, shape)
        pad = sent - (2 * hidden * own + masked)
        found["masked", number], found["pad", number] = masked, pad
        return -pad

    def gate(self, number: int, step: Gate, x: Tensor) -> Tensor:
        theirs, found = self.world.server_lot, self.lot.values
        ahead = self.world.ahead[number, "neurons"]
        own = found["neurons", number] = x - ahead
        server_x = self.world.server_shares[step.inputs[0]]
        opened = self.world.opened(step.leader)
        if step.leads:
            # The gates of the other image, hidden by other bits, look the same.
            gates = (server_x + x)[:, : step.prototypes] >= 0
            self.bits[number] = (gates ^ opened).long()
            found["bit", number] = self.bits[number] - theirs.correction("bit", number, step.gates)
            self.lot.ideals[number] = Ideal(IMAGES, self.world.bits(number, step)[1])
        both = own + theirs.mask("neurons", number, step.neurons)
        masked = both * step.each(self.bits[step.leader]) - theirs.correction("masked", number, step.neurons)
        found["masked", number] = masked
        hidden = server_x - theirs.mask("neurons", number, step.neurons) + ahead
        product = hidden * step.each(found["bit", step.leader]) + masked
        sent = self.world.numbers(self.world.run.from_client, number, step.neurons)
        pad = found["pad", number] = sent - gated(step.each(opened), x, product)
        alpha, beta = weights.affine_masks(self.world.trial.dealer.seed, step)
        rest = alpha * pad - beta * own - theirs.correction("affine", number, step.neurons)
        found["affine", number] = rest
        first, second = self.world.trial.client._affine[number]
        return -(first * pad - second * x + rest)


def test_what_the_server_sees_fits_another_image(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    images = 2 * torch.randn(IMAGES, *SIZE)
    finder = ForClient(world, images)
    lot: Any = finder.find()
    monkeypatch.setattr(clients, "mask", lambda seed, shape: finder.first)
    shares: dict[int, Tensor] = {}
    prepared = world.trial.client.prepare(lot, bytes(32), shares)
    assert prepared.ahead.keys() == world.ahead.keys()
    for piece, tensor in prepared.ahead.items():
        assert torch.equal(tensor, world.ahead[piece]), piece
    client = Replay(world.run.from_server)
    logits = world.trial.client.ask(images, prepared, client, Layers([client], "client_bytes", 99))
    assert client.messages == world.run.from_client
    assert torch.equal(logits - world.run.noise, reference.evaluate(world.trial.schedule, images, shares))
    assert not torch.equal(logits, world.run.logits)


def other_model(program: Program) -> Program:
    operations = []
    for operation in program.operations:
        hidden = hidden_tensors(operation)
        others = {name: value + 0.05 * torch.randn_like(value) for name, value in hidden.items()}
        operations.append(replace(operation, **others))  # type: ignore[arg-type]
    return Program(tuple(operations))


class ForServer:
    """Finds the server's masks that explain another model to the client."""

    def __init__(self, world: World, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.lot = world, Explained()
        steps = schedule(program, world.trial.numbers)
        self.steps = Watched(steps.program, steps.numbers, steps.steps, steps.output, steps.diagonals)
        self.server = Server(self.steps, bytes(32))
        self.bits: dict[int, Tensor] = {}
        self.affine: dict[int, tuple[Tensor, Tensor]] = {}
        for number, offsets in world.trial.offsets.items():
            self.server.offsets(number)
            step = steps.steps[number]
            if isinstance(step, Product):
                for term, offset in zip(step.terms, offsets, strict=True):
                    mask = weights.encoded_weight(self.steps, term) - offset
                    self.server._masks[term] = weights.masked(self.steps, term, mask)
            elif isinstance(step, Gate):
                alpha, beta = (
                    value - step.per_channel(offset)
                    for value, offset in zip(self.server._affine[number], offsets, strict=True)
                )
                self.affine[step.operation] = alpha, beta
        monkeypatch.setattr(weights, "affine_masks", lambda seed, step: self.affine[step.operation])

    def find(self) -> Explained:
        Schedule.run(self.steps, self.step)
        return self.lot

    def step(self, number: int, step: Step, inputs: list[Tensor]) -> Tensor:
        match step:
            case Take():
                return self.world.numbers(self.world.run.from_client, number, step.shape)
            case Product():
                return self.product(number, step, inputs)
            case Shift(by=by):
                return truncate_server(inputs[0], by)
            case Opening():
                opening = self.world.numbers(self.world.run.from_server, number, step.neurons)
                self.lot.values["neurons", number] = step.picked(inputs[0]) - opening
                return inputs[0]
            case Square(inputs=(source,)):
                return self.square(number, step, source)
            case Gate():
                return self.gate(number, step, inputs[0])
        return alone(step, inputs)

    def product(self, number: int, step: Product, inputs: list[Tensor]) -> Tensor:
        theirs, steps = self.world.client_lot, self.steps.steps
        share = -theirs.mask("product", number, step.shape)
        total = weights.encoded_bias(self.steps, step)
        for term, source, x in zip(step.terms, step.inputs, inputs, strict=True):
            share += self.server._masks[term](theirs.mask("tensor", source, steps[source].shape))
            total = total + self.server._plain[term](x) + self.server._masks[term](self.world.ahead[source, "tensor"])
        self.lot.values["product", number] = share
        return total + share

    def square(self, number: int, step: Square, source: int) -> Tensor:
        theirs, found, shape = self.world.client_lot, self.lot.values, step.opening.neurons
        mask, other = found["neurons", source], theirs.mask("neurons", source, shape)
        masked = found["masked", number] = (mask + other).square() - theirs.mask("masked", number, shape)
        hidden = self.world.numbers(self.world.run.from_server, source, shape) + self.world.ahead[source, "neurons"]
        sent = self.world.numbers(self.world.run.from_client, number, shape)
        return hidden * (hidden + 2 * mask) + masked + sent

    def gate(self, number: int, step: Gate, x: Tensor) -> Tensor:
        theirs, found = self.world.client_lot, self.lot.values
        opening, ahead = (
            self.world.numbers(self.world.run.from_server, number, step.neurons),
            self.world.ahead[number, "neurons"],
        )
        mask = found["neurons", number] = x - opening
        opened = self.world.opened(step.leader)
        if step.leads:
            gates = (self.world.client_shares[step.inputs[0]] + x)[:, : step.prototypes] >= 0
            self.bits[number] = (gates ^ opened).long()
            found["bit", number] = self.bits[number] - theirs.mask("bit", number, step.gates)
            self.lot.ideals[number] = Ideal(IMAGES, self.world.bits(number, step)[0])
        own, pad = (theirs.mask(name, number, step.neurons) for name in ("neurons", "pad"))
        both = (mask + own) * step.each(self.bits[step.leader])
        masked = found["masked", number] = both - theirs.mask("masked", number, step.neurons)
        alpha, beta = self.affine[step.operation]
        rest = found["affine", number] = alpha * pad - beta * own - theirs.mask("affine", number, step.neurons)
        product = (opening + ahead) * step.each(found["bit", step.leader]) + masked
        sent = self.world.numbers(self.world.run.from_client, number, step.neurons)
        first, second = self.server._affine[number]
        return first * (gated(step.each(opened), x, product) + sent) + second * x - (rest - beta * ahead)


def test_what_the_client_sees_but_the_logits_fits_another_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    program = other_model(world.trial.program)
    finder = ForServer(world, program, monkeypatch)
    lot: Any = finder.find()
    settled = finder.server.settle([(lot, range(IMAGES))], world.ahead)
    server = Replay(world.run.from_client)
    noise = finder.server.answer(settled, server, Layers([server], "server_bytes", 99))
    assert server.messages[:-1] == world.run.from_server[:-1]
    shares = {
        number: world.client_shares[step.inputs[0]]
        for number, step in enumerate(finder.steps.steps)
        if isinstance(step, Shift)
    }
    output = finder.steps.output
    logits = finder.steps.seen[output] + world.client_shares[output]
    assert torch.equal(logits, reference.evaluate(finder.steps, world.images, shares))
    assert not torch.equal(logits + noise, world.run.logits)
