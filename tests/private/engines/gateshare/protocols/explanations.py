"""Masks that explain a party's view by another secret of the other party."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.crypto.ring import encode, truncate_client, truncate_server
from deepshare.private.engines.gateshare.lot import Lot, Piece
from deepshare.private.engines.gateshare.protocols.comparison import unpack
from deepshare.private.engines.gateshare.protocols.gate import AlphaBeta, GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.local import AffineStep, InputStep, LocalStep
from deepshare.private.engines.gateshare.protocols.product import ProductStep
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from deepshare.private.engines.gateshare.protocols.step import Multiply, ProtocolStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.ir.program import Program, hidden_tensors
from tests.private.engines.gateshare.trial import (
    Run,
    Tapped,
    Trial,
    gated,
    watched,
)

IMAGES = 2


@dataclass(eq=False)
class Ideal:
    """A comparison that gives this party's bits as they were seen."""

    images: int
    bits: Bits

    def share(self, eps: Any, party: str) -> Bits:
        return self.bits

    def select(self, rows: Sequence[int]) -> "Ideal":
        return self


@dataclass(eq=False)
class Explained:
    """A lot whose masks are found, not dealt; those that are public are as they were."""

    public: Lot
    images: int = IMAGES
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    ideals: dict[int, Ideal] = field(default_factory=dict)

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        return self.values[name, number]

    share = mask

    def public_mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        return self.public.public_mask(name, number, shape)


@dataclass(eq=False)
class World:
    """A run, and all that its parties had."""

    trial: Trial
    images: Tensor
    server_lot: Lot
    client_lot: Lot
    openings: dict[Piece, Tensor]
    run: Run
    server_shares: dict[int, Tensor]
    client_shares: dict[int, Tensor]

    def bits(self, step: GateStep) -> tuple[Bits, Bits]:
        """h_S and h_C of a leader, as they went over the wire."""
        count = step.elements * IMAGES * 8
        from_server = [data for number, data in self.run.from_server if number == step.number][1]
        from_client = next(data for number, data in self.run.from_client if number == step.number)[count:]
        return self._unpacked(from_server, step), self._unpacked(from_client, step)

    def _unpacked(self, data: bytes, step: GateStep) -> Bits:
        return unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8).numpy(), IMAGES * step.comparisons)

    def numbers(self, messages: list[tuple[int, bytes]], number: int, shape: Sequence[int]) -> Tensor:
        data = next(data for n, data in messages if n == number)
        size = 8 * IMAGES * math.prod(shape)
        return torch.frombuffer(bytearray(data[:size]), dtype=torch.int64).view(IMAGES, *shape)

    def h(self, leader: int) -> Tensor:
        """The masked gates of a leader."""
        step = self.trial.schedule.steps[leader]
        assert isinstance(step, GateStep)
        h_S, h_C = self.bits(step)
        return step.shaped(h_S ^ h_C)


class Replay(Tapped):
    """A channel to a party that says what it said before, whatever it is told."""

    def __init__(self, incoming: list[tuple[int, bytes]]) -> None:
        self.sent, self.messages, self.watch, self._incoming = 0, [], None, iter(incoming)

    def _send(self, step: int, views: list[memoryview]) -> None:
        self.messages.append((step, b"".join(views)))

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        said, data = next(self._incoming)
        assert (said, len(data)) == (step, size)
        return np.frombuffer(bytearray(data), np.uint8)

    def receive_both(self, step: int, more: int, *, into: Tensor) -> tuple[Tensor, NDArray[np.uint8]]:
        data = self.receive(step, 8 * into.numel() + more)
        numbers, rest = data[: 8 * into.numel()], data[8 * into.numel() :]
        return into.copy_(torch.from_numpy(numbers.view(np.int64)).view(into.shape)), rest


class ForClient:
    """Finds the client's masks that explain another image to the server."""

    def __init__(self, world: World, images: Tensor) -> None:
        self.world, self.lot, self.images = world, Explained(world.client_lot), images
        self.steps, self.x_C = world.trial.schedule, torch.empty(0)
        self.b: dict[int, Tensor] = {}

    def find(self) -> Explained:
        Schedule.run(self.steps, self.step)
        return self.lot

    def step(self, step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
        match step:
            case InputStep():
                x_S = self.world.numbers(self.world.run.from_client, step.number, step.shape)
                self.x_C = encode(self.images, step.scale) - x_S
                return self.x_C
            case LinearStep():
                return self.linear(step, inputs)
            case TruncationStep():
                return truncate_client(inputs[0], step.by)
            case OpeningStep():
                e_C = self.world.openings[step.number, "neurons"]
                self.lot.values["neurons", step.number] = step.picked(inputs[0]) - e_C
                return inputs[0]
            case SquareStep():
                return self.square(step)
            case ProductStep():
                return self.product(step)
            case GateStep():
                return self.gate(step, inputs[0])
            case AffineStep():
                return step.apply(inputs) + (
                    self.lot.public_mask("shift", step.number, step.shape) if step.shift else 0
                )
            case LocalStep():
                return step.apply(inputs)
        raise AssertionError(step)

    def product(self, step: ProductStep) -> Tensor:
        theirs, found = self.world.server_lot, self.lot.values
        pairs = [(found["neurons", one.number], theirs.mask("neurons", one.number, one.shape)) for one in step.factors]
        (a_C, a_S), (b_C, b_S) = pairs
        AB_C = (a_S + a_C) * (b_S + b_C) - theirs.correction("masked", step.number, step.shape)
        eps, phi = (
            self.world.server_shares[one.number] - mask + self.world.openings[one.number, "neurons"]
            for one, (_, mask) in zip(step.factors, pairs, strict=True)
        )
        sent = self.world.numbers(self.world.run.from_client, step.number, step.shape)
        p = sent - (eps * b_C + phi * a_C + AB_C)
        found["masked", step.number], found["pad", step.number] = AB_C, p
        return -p

    def linear(self, step: LinearStep, inputs: list[Tensor]) -> Tensor:
        L: list[Multiply] = step.dealer_session(self.world.trial.dealer.seed)
        D: list[Multiply] = self.world.trial.client.session[step.number]
        c_C = -self.world.server_lot.correction("product", step.number, step.shape)
        y_C = torch.zeros_like(c_C)
        for L_i, D_i, source, t_C in zip(L, D, step.inputs, inputs, strict=True):
            a = self.lot.values["tensor", source] = t_C - self.world.openings[source, "tensor"]
            c_C += L_i(a)
            y_C += D_i(a)
        self.lot.values["product", step.number] = c_C
        return y_C + c_C

    def square(self, step: SquareStep) -> Tensor:
        theirs, found, source = self.world.server_lot, self.lot.values, step.opening.number
        a_C, a_S = found["neurons", source], theirs.mask("neurons", source, step.shape)
        AA_C = (a_S + a_C).square() - theirs.correction("masked", step.number, step.shape)
        x_S, e_C = step.opening.picked(self.world.server_shares[source]), self.world.openings[source, "neurons"]
        eps = x_S - a_S + e_C
        sent = self.world.numbers(self.world.run.from_client, step.number, step.shape)
        p = sent - (2 * eps * a_C + AA_C)
        found["masked", step.number], found["pad", step.number] = AA_C, p
        return -p

    def gate(self, step: GateStep, x_C: Tensor) -> Tensor:
        theirs, found, number = self.world.server_lot, self.lot.values, step.number
        e_C = self.world.openings[number, "neurons"]
        a_C, a_S = x_C - e_C, theirs.mask("neurons", number, step.neurons)
        x_S, h = self.world.server_shares[step.inputs[0]], self.world.h(step.leader)
        if step.leads:
            # The gates of the other image, hidden by other bits, look the same.
            g = (x_S + x_C)[:, : step.prototypes] >= 0
            self.b[number] = (g ^ h).long()
            found["bit", number] = self.b[number] - theirs.correction("bit", number, step.gates)
            self.lot.ideals[number] = Ideal(IMAGES, self.world.bits(step)[1])
        b = step.per_neuron(self.b[step.leader])
        Ab_C = (a_S + a_C) * b - theirs.correction("masked", number, step.neurons)
        eps = x_S - a_S + e_C
        xb_C = eps * step.per_neuron(found["bit", step.leader]) + Ab_C
        sent = self.world.numbers(self.world.run.from_client, number, step.neurons)
        p = sent - gated(step.per_neuron(h), x_C, xb_C)
        L = step.affine_masks(self.world.trial.dealer.seed)
        w_C = L.alpha * p - L.beta * a_C - theirs.correction("affine", number, step.neurons)
        found["neurons", number], found["masked", number] = a_C, Ab_C
        found["pad", number], found["affine", number] = p, w_C
        D: AlphaBeta = self.world.trial.client.session[number]
        return -(D.alpha * p - D.beta * a_C + w_C)


def other_model(program: Program) -> Program:
    operations = []
    for operation in program.operations:
        hidden = hidden_tensors(operation)
        others = {name: value + 0.05 * torch.randn_like(value) for name, value in hidden.items()}
        operations.append(replace(operation, **others))  # type: ignore[arg-type]
    return Program(tuple(operations))


class ForServer:
    """Finds the server's masks that explain another model to the client."""

    def __init__(self, world: World, program: Program) -> None:
        self.world, self.lot = world, Explained(world.server_lot)
        self.steps = watched(program, world.trial.number_format)
        self.server = ServerParty(self.steps, bytes(32))
        self.b: dict[int, Tensor] = {}
        # Masks that hide the other weights just as those of the run hid the first.
        self.L: dict[int, Any] = {}
        for number, _ in self.server.masked_weights():
            step, D = self.steps.steps[number], world.trial.masked_weights[number]
            if isinstance(step, LinearStep):
                self.L[number] = [term.multiply(term.weight() - one) for term, one in zip(step.terms, D, strict=True)]
            elif isinstance(step, GateStep):
                alpha, beta = (step.per_channel(one) for one in D)
                plain: AlphaBeta = self.server.session[number]
                self.L[number] = AlphaBeta(plain.alpha - alpha, plain.beta - beta)

    def find(self) -> Explained:
        Schedule.run(self.steps, self.step)
        return self.lot

    def step(self, step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
        match step:
            case InputStep():
                return self.world.numbers(self.world.run.from_client, step.number, step.shape)
            case LinearStep():
                return self.linear(step, inputs)
            case TruncationStep():
                return truncate_server(inputs[0], step.by)
            case OpeningStep():
                e_S = self.world.numbers(self.world.run.from_server, step.number, step.neurons)
                self.lot.values["neurons", step.number] = step.picked(inputs[0]) - e_S
                return inputs[0]
            case SquareStep():
                return self.square(step)
            case ProductStep():
                return self.product(step)
            case GateStep():
                return self.gate(step, inputs[0])
            case AffineStep():
                z = self.lot.public_mask("shift", step.number, step.shape)
                return step.apply(inputs) + (step.shift - z if step.shift else 0)
            case LocalStep():
                return step.apply(inputs)
        raise AssertionError(step)

    def product(self, step: ProductStep) -> Tensor:
        theirs, found = self.world.client_lot, self.lot.values
        (a_S, a_C), (b_S, b_C) = (
            (found["neurons", one.number], theirs.mask("neurons", one.number, one.shape)) for one in step.factors
        )
        AB_S = (a_S + a_C) * (b_S + b_C) - theirs.mask("masked", step.number, step.shape)
        found["masked", step.number] = AB_S
        eps, phi = (
            self.world.numbers(self.world.run.from_server, one.number, one.shape)
            + self.world.openings[one.number, "neurons"]
            for one in step.factors
        )
        sent = self.world.numbers(self.world.run.from_client, step.number, step.shape)
        return eps * (phi + b_S) + phi * a_S + AB_S + sent

    def linear(self, step: LinearStep, inputs: list[Tensor]) -> Tensor:
        theirs = self.world.client_lot
        products = zip(self.server.session[step.number], self.L[step.number], strict=True)
        c_S = -theirs.mask("product", step.number, step.shape)
        y_S = step.bias()
        for (W, L), term, source, t_S in zip(products, step.terms, step.inputs, inputs, strict=True):
            c_S += L(theirs.mask("tensor", source, term.takes))
            y_S = y_S + W(t_S + self.world.openings[source, "tensor"])
        self.lot.values["product", step.number] = c_S
        return y_S + c_S

    def square(self, step: SquareStep) -> Tensor:
        theirs, found, source = self.world.client_lot, self.lot.values, step.opening.number
        a_S, a_C = found["neurons", source], theirs.mask("neurons", source, step.shape)
        AA_S = (a_S + a_C).square() - theirs.mask("masked", step.number, step.shape)
        found["masked", step.number] = AA_S
        e_S = self.world.numbers(self.world.run.from_server, source, step.shape)
        eps = e_S + self.world.openings[source, "neurons"]
        sent = self.world.numbers(self.world.run.from_client, step.number, step.shape)
        return eps * (eps + 2 * a_S) + AA_S + sent

    def gate(self, step: GateStep, x_S: Tensor) -> Tensor:
        theirs, found, number = self.world.client_lot, self.lot.values, step.number
        e_S = self.world.numbers(self.world.run.from_server, number, step.neurons)
        e_C = self.world.openings[number, "neurons"]
        a_S, h = x_S - e_S, self.world.h(step.leader)
        if step.leads:
            g = (self.world.client_shares[step.inputs[0]] + x_S)[:, : step.prototypes] >= 0
            self.b[number] = (g ^ h).long()
            found["bit", number] = self.b[number] - theirs.mask("bit", number, step.gates)
            self.lot.ideals[number] = Ideal(IMAGES, self.world.bits(step)[0])
        a_C, p = (theirs.mask(name, number, step.neurons) for name in ("neurons", "pad"))
        Ab = (a_S + a_C) * step.per_neuron(self.b[step.leader])
        Ab_S = Ab - theirs.mask("masked", number, step.neurons)
        affine: AlphaBeta = self.server.session[number]
        w_S = self.L[number].alpha * p - self.L[number].beta * a_C - theirs.mask("affine", number, step.neurons)
        found["neurons", number], found["masked", number], found["affine", number] = a_S, Ab_S, w_S
        xb_S = (e_S + e_C) * step.per_neuron(found["bit", step.leader]) + Ab_S
        sent = self.world.numbers(self.world.run.from_client, number, step.neurons)
        u = gated(step.per_neuron(h), x_S, xb_S) + sent
        return affine.alpha * u + affine.beta * (x_S + e_C) - w_S
