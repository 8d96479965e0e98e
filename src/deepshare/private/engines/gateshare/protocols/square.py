"""Squares: y = x^2, and with them activations that are polynomials c x^2 + d x + e, for all neurons or for some.

Letters. x = x_S + x_C is the input, a_S and a_C the parties' masks of it, A = a_S + a_C, p the client's pad.

Before the images
    1. dealer -> server   AA_S = A^2 - AA_C  ("masked")                                       8 bytes a number
       Expanded from seeds: a_S, a_C ("neurons"), AA_C, p ("pad")
    2. client -> server   e_C = x_C - a_C                                                     8 bytes a number
    3. client             its share of y is y_C = -p

With the images
    4. server -> client   e_S = x_S - a_S                                                     8 bytes a number
       both               eps = e_S + e_C = x - A
    5. client -> server   2 eps a_C + AA_C + p                                                8 bytes a number
    6. server             y_S = eps (eps + 2 a_S) + AA_S + what it got

So y_S + y_C = eps^2 + 2 eps A + A^2 = x^2.

Without a dealer each party draws its mask, and shares of a_S a_C are made under encryption, element by element: then
AA_S = a_S^2 + 2 (its share) and AA_C = a_C^2 + 2 (its share) (`SquareStep.encrypted`).

4 is a step of its own, `OpeningStep`: the server waits for nobody there, so gates and other squares share its way. The
answer, 5 and 6, is `SquareStep`, placed after the next gates, or where its result is read: a square beside a gate takes
no round more. c, d and e are the server's secret, multiplied by a diagonal `linear` step.
"""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from deepshare.private.engines.gateshare.fixedpoint import MARGIN, SQUARED
from deepshare.private.engines.gateshare.lot import Batch, Holder, Piece
from deepshare.private.engines.gateshare.protocols.gate import lower_gated, picked
from deepshare.private.engines.gateshare.protocols.linear import Diagonal, add_linear
from deepshare.private.engines.gateshare.protocols.local import ScatterStep, SelectStep
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    WORD,
    ClientOffline,
    ClientOnline,
    Dealing,
    EncryptedProduct,
    InTheClear,
    Making,
    ProtocolStep,
    ServerOffline,
    ServerOnline,
)
from deepshare.private.ir.program import GatedActivation, Shape
from deepshare.private.runtime.outcome import Part


@dataclass(frozen=True, eq=False, kw_only=True)
class OpeningStep(ProtocolStep):
    """Opens numbers, less a mask that neither party knows; its result is its input.

    Attributes:
        neurons: Shape of the numbers.
        where: Their places among all elements; None where they are all.
    """

    interactive = True

    neurons: Shape
    where: Tensor | None

    @property
    def products(self) -> int:
        """Numbers for each image."""
        return math.prod(self.neurons)

    def picked(self, x: Tensor) -> Tensor:
        """The numbers that are opened."""
        return picked(x, self.where)

    def client_openings(self) -> dict[Piece, Shape]:
        """Shape of e_C."""
        return {(self.number, "neurons"): self.neurons}

    def online_cost(self, images: int) -> Part:
        """Size of step 4."""
        return Part(server_bytes=WORD * images * self.products)

    @property
    def held_bytes(self) -> int:
        """About six tensors, those of the squares among them."""
        return 6 * WORD * self.products

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do step 2."""
        a_C = at.lot.mask("neurons", self.number, self.neurons)
        at.openings[self.number, "neurons"] = self.picked(inputs[0]) - a_C
        return inputs[0]

    def server_offline(self, at: ServerOffline) -> None:
        """Expand a_S."""
        at.held[self.number] = at.lot.mask("neurons", self.number, self.neurons)

    def client_online(self, at: ClientOnline) -> None:
        """Do step 4."""
        at.passed[self.number] = at.server.receive_numbers(self.number, (len(at.images), *self.neurons))
        at.waited()

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 4."""
        a_S: Tensor = at.held[self.number]
        e_S = at.passed[self.number] = self.picked(inputs[0]) - a_S
        at.client.send(self.number, e_S)
        return inputs[0]

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """The input."""
        return inputs[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientSquare(Batch):
    """Held by the client for squares before the images."""

    a_C: Tensor
    e_C: Tensor
    AA_C: Tensor
    p: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerSquare:
    """Held by the server for squares before the images."""

    a_S: Tensor
    e_C: Tensor
    AA_S: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class SquareStep(ProtocolStep):
    """The squares of opened numbers.

    Attributes:
        opening: The step that opens them, its input.
        rounds: 1, or 0 where the client has been waited for since the last opening.
    """

    interactive = True

    opening: OpeningStep
    rounds: int

    def dealt_bytes(self, images: int, party: Holder) -> dict[str, int]:
        """Size of AA_S; of AA_C too, where there is no dealer."""
        return {} if self.dealt and party == "client" else {"masked": WORD * images * self.elements}

    def is_early(self, inputs: list[bool]) -> bool:
        """The client's share is -p."""
        return True

    def early_share(self, at: Making) -> Tensor:
        """y_C."""
        return -at.lot.mask("pad", self.number, self.shape)

    def encrypted(self, images: int) -> EncryptedProduct | None:
        """Do step 1 without a dealer: a_S a_C."""
        return EncryptedProduct(images * self.elements, self.factor, self.keep_square)

    def factor(self, at: Making) -> Tensor:
        """This party's mask."""
        return at.lot.mask("neurons", self.opening.number, self.shape).flatten()

    def keep_square(self, at: Making, share: Tensor) -> None:
        """Put a share of A^2 into the lots."""
        a = self.factor(at)
        at.lot.put("masked", self.number, (a * a + 2 * share).view(at.lot.images, -1))

    def online_cost(self, images: int) -> Part:
        """Size of step 5."""
        numbers = images * self.elements
        return Part(client_bytes=WORD * numbers, rounds=self.rounds, products=numbers)

    def deal(self, at: Dealing) -> None:
        """Do step 1."""
        a_C, a_S = (lot.mask("neurons", self.opening.number, self.shape) for lot in (at.client, at.server))
        A = a_S + a_C
        at.server.put("masked", self.number, A * A - at.client.mask("masked", self.number, self.shape))

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do step 3."""
        a_C = at.lot.mask("neurons", self.opening.number, self.shape)
        AA_C, p = (at.lot.share(name, self.number, self.shape) for name in ("masked", "pad"))
        e_C = at.openings[self.opening.number, "neurons"]
        at.held[self.number] = ClientSquare(a_C=a_C, e_C=e_C, AA_C=AA_C, p=p)
        return -p

    def server_offline(self, at: ServerOffline) -> None:
        """Read what was dealt."""
        a_S: Tensor = at.held[self.opening.number]
        e_C = at.openings[self.opening.number, "neurons"]
        AA_S = at.lot.share("masked", self.number, self.shape)
        at.held[self.number] = ServerSquare(a_S=a_S, e_C=e_C, AA_S=AA_S)

    def client_online(self, at: ClientOnline) -> None:
        """Do step 5."""
        mine: ClientSquare = at.held[self.number]
        eps = at.passed.pop(self.opening.number) + mine.e_C
        at.server.send(self.number, 2 * eps * mine.a_C + mine.AA_C + mine.p)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 6."""
        mine: ServerSquare = at.held[self.number]
        eps = at.passed.pop(self.opening.number) + mine.e_C
        y_S = eps * (eps + 2 * mine.a_S) + mine.AA_S
        return y_S + at.client.receive_numbers(self.number, tuple(y_S.shape))

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Square."""
        return self.opening.picked(inputs[0]).square()


def lower_gated_or_square(builder: ScheduleBuilder, operation: int, node: GatedActivation) -> None:
    """Add the steps of an activation with gates for some neurons and polynomials for the others.

    Polynomials are only begun here. They end after the next gates, or where their result is read, so that both go
    together.
    """
    if node.square is None or node.gated == node.elements:
        lower_gated(builder, operation, node)
        return
    x, numbers = builder.at_activation_scale(node.inputs[0]), builder.number_format
    where = (~node.mask).flatten().nonzero().flatten() if node.gated else None
    source = builder.truncated(operation, x, SQUARED, numbers.ranges[node.inputs[0]] - MARGIN)
    opening = OpeningStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=SQUARED,
        neurons=node.shape if where is None else (len(where),),
        where=where,
    )
    builder.append(opening)
    builder.pending[operation] = partial(_finish, builder, operation, node, opening)
    if node.gated:
        lower_gated(builder, operation, node)


def _finish(builder: ScheduleBuilder, operation: int, node: GatedActivation, opening: OpeningStep) -> None:
    """Add the squares, and from them the polynomials."""
    if node.square is None or node.linear is None:
        raise TypeError(node)
    x, numbers = builder.at_activation_scale(node.inputs[0]), builder.number_format
    last = next(step for step in reversed(builder.steps) if step.interactive)
    square = SquareStep(
        number=builder.next_number,
        operation=operation,
        inputs=(opening.number,),
        shape=opening.neurons,
        scale=2 * opening.scale,
        opening=opening,
        rounds=int(isinstance(last, OpeningStep)),
    )
    bits = 2 * (numbers.ranges[node.inputs[0]] - MARGIN) - numbers.fraction
    squares = builder.truncated(operation, builder.append(square), numbers.fraction, bits)
    if opening.where is not None:
        number = builder.next_number
        scattered = ScatterStep(
            number=number,
            operation=operation,
            inputs=(squares,),
            shape=node.shape,
            scale=numbers.fraction,
            where=opening.where,
        )
        squares = builder.append(scattered)
    gates = builder.at.get(operation)
    zero = node.linear.new_zeros(())
    constant = zero if node.constant is None else node.constant
    terms = [
        (squares, builder.extra_label(), Diagonal(node.square, constant)),
        (x, builder.extra_label(), Diagonal(node.linear, zero)),
    ]
    polynomial = add_linear(builder, operation, terms)
    if gates is not None:
        scale = builder.steps[polynomial].scale
        selected = SelectStep(
            number=builder.next_number,
            operation=operation,
            inputs=(gates, polynomial),
            shape=node.shape,
            scale=scale,
            mask=node.mask,
            lifts=(scale - builder.steps[gates].scale, 0),
        )
        builder.append(selected, result_of=operation)
