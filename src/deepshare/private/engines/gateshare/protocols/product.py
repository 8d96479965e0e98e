"""Products of two hidden tensors: z = x y, element by element, where y broadcasts to x (a gate for each channel, say).

Letters. x = x_S + x_C and y = y_S + y_C are the factors, a_S and a_C the parties' masks of x, b_S and b_C those of y,
A = a_S + a_C, B = b_S + b_C, p the client's pad.

Before the images
    1. dealer -> server   AB_S = A B - AB_C  ("masked")                                       8 bytes a product
       Expanded from seeds: a_S, a_C, b_S, b_C ("neurons" of the two openings), AB_C, p ("pad")
    2. client -> server   e_C = x_C - a_C, f_C = y_C - b_C                                    8 bytes a number
    3. client             its share of z is z_C = -p

With the images
    4. server -> client   e_S = x_S - a_S, f_S = y_S - b_S                                    8 bytes a number
       both               eps = e_S + e_C = x - A, phi = f_S + f_C = y - B
    5. client -> server   eps b_C + phi a_C + AB_C + p                                        8 bytes a product
    6. server             z_S = eps (phi + b_S) + phi a_S + AB_S + what it got

So z_S + z_C = eps phi + eps B + phi A + A B = x y.

Without a dealer each party draws its masks, and shares of a_S b_C and b_S a_C are made under encryption, element by
element (`ProductStep.encrypted`).

4 is two `OpeningStep` of `square`, one for each factor. Two squares, ((x + y)^2 - (x - y)^2) / 4, would do as well, but
open two tensors of the size of x however small y is, and need more range.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.fixedpoint import MARGIN
from deepshare.private.engines.gateshare.lot import Batch, Holder
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.square import OpeningStep
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
from deepshare.private.ir.program import Multiply
from deepshare.private.runtime.outcome import Part


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientProduct(Batch):
    """Held by the client for products before the images."""

    a_C: Tensor
    b_C: Tensor
    e_C: Tensor
    f_C: Tensor
    AB_C: Tensor
    p: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerProduct:
    """Held by the server for products before the images."""

    a_S: Tensor
    b_S: Tensor
    e_C: Tensor
    f_C: Tensor
    AB_S: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ProductStep(ProtocolStep):
    """The products of opened numbers.

    Attributes:
        factors: The steps that open x and y, its inputs.
    """

    interactive = True

    factors: tuple[OpeningStep, OpeningStep]

    def dealt_bytes(self, images: int, party: Holder) -> dict[str, int]:
        """Size of AB_S; of AB_C too, where there is no dealer."""
        return {} if self.dealt and party == "client" else {"masked": WORD * images * self.elements}

    def is_early(self, inputs: list[bool]) -> bool:
        """The client's share is -p."""
        return True

    def early_share(self, at: Making) -> Tensor:
        """z_C."""
        return -at.lot.mask("pad", self.number, self.shape)

    def encrypted(self, images: int) -> EncryptedProduct | None:
        """Do step 1 without a dealer: a_S b_C, then b_S a_C."""
        return EncryptedProduct(2 * images * self.elements, self.factor, self.keep_masked)

    def factor(self, at: Making) -> Tensor:
        """This party's masks of both factors: the server's in order, the client's the other way round."""
        masks = self.masks(at)
        return torch.cat(masks if at.party == "server" else masks[::-1]).flatten()

    def keep_masked(self, at: Making, share: Tensor) -> None:
        """Put a share of A B into the lots."""
        a, b = self.masks(at)
        at.lot.put("masked", self.number, a * b + share.view(2, *a.shape).sum(0))

    def masks(self, at: Making) -> list[Tensor]:
        """This party's masks of both factors, broadcast to the products."""
        shape = (at.lot.images, *self.shape)
        return [at.lot.mask("neurons", factor.number, factor.shape).expand(shape) for factor in self.factors]

    def online_cost(self, images: int) -> Part:
        """Size of step 5."""
        numbers = images * self.elements
        return Part(client_bytes=WORD * numbers, rounds=1, products=numbers)

    def deal(self, at: Dealing) -> None:
        """Do step 1."""
        (a_C, b_C), (a_S, b_S) = (
            [lot.mask("neurons", factor.number, factor.shape) for factor in self.factors]
            for lot in (at.client, at.server)
        )
        A, B = a_S + a_C, b_S + b_C
        at.server.put("masked", self.number, A * B - at.client.mask("masked", self.number, self.shape))

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do step 3."""
        a_C, b_C = (at.lot.mask("neurons", factor.number, factor.shape) for factor in self.factors)
        e_C, f_C = (at.openings[factor.number, "neurons"] for factor in self.factors)
        AB_C, p = (at.lot.share(name, self.number, self.shape) for name in ("masked", "pad"))
        at.held[self.number] = ClientProduct(a_C=a_C, b_C=b_C, e_C=e_C, f_C=f_C, AB_C=AB_C, p=p)
        return -p

    def server_offline(self, at: ServerOffline) -> None:
        """Read what was dealt."""
        a_S, b_S = (at.held[factor.number] for factor in self.factors)
        e_C, f_C = (at.openings[factor.number, "neurons"] for factor in self.factors)
        AB_S = at.lot.share("masked", self.number, self.shape)
        at.held[self.number] = ServerProduct(a_S=a_S, b_S=b_S, e_C=e_C, f_C=f_C, AB_S=AB_S)

    def client_online(self, at: ClientOnline) -> None:
        """Do step 5."""
        mine: ClientProduct = at.held[self.number]
        e_S, f_S = (at.passed.pop(factor.number) for factor in self.factors)
        eps, phi = e_S + mine.e_C, f_S + mine.f_C
        at.server.send(self.number, eps * mine.b_C + phi * mine.a_C + mine.AB_C + mine.p)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 6."""
        mine: ServerProduct = at.held[self.number]
        e_S, f_S = (at.passed.pop(factor.number) for factor in self.factors)
        eps, phi = e_S + mine.e_C, f_S + mine.f_C
        z_S = eps * (phi + mine.b_S) + phi * mine.a_S + mine.AB_S
        return z_S + at.client.receive_numbers(self.number, tuple(z_S.shape))

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Multiply."""
        return inputs[0] * inputs[1]


def lower_multiply(builder: ScheduleBuilder, operation: int, node: Multiply) -> None:
    """Add the steps of a product: x has the scale of activations and y that of weights, as in a linear layer."""
    numbers = builder.number_format
    scales, openings = (numbers.fraction, numbers.weight), []
    for factor, scale in zip(node.inputs, scales, strict=True):
        source = builder.truncated(operation, builder.result(factor), scale, numbers.ranges[factor] - MARGIN)
        shape = builder.program.operations[factor].shape
        opening = OpeningStep(
            number=builder.next_number,
            operation=operation,
            inputs=(source,),
            shape=shape,
            scale=scale,
            neurons=shape,
            where=None,
        )
        builder.append(opening)
        openings.append(opening)
    step = ProductStep(
        number=builder.next_number,
        operation=operation,
        inputs=(openings[0].number, openings[1].number),
        shape=node.shape,
        scale=sum(scales),
        factors=(openings[0], openings[1]),
    )
    builder.append(step, result_of=operation)
