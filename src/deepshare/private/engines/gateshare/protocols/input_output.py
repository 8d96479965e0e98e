"""Input and output: images go in as shares, logits come out to the client alone.

Input, x = x_S + x_C
    1. client             before the images: draws x_C from a seed of its own, which not even the dealer knows
    2. client -> server   with the images: x_S = x - x_C                                   8 bytes an element

Output, y = y_S + y_C
    3. server -> client   y_S + noise, uniform within +-2^noise_bits                          8 bytes a logit
    4. client             y + noise = (y_S + noise) + y_C

The noise hides what rounding, which depends on hidden values, tells about the weights. A logit beyond `LARGEST_LOGIT`
is an error. It is not asked again: a visible retry would tell the server something.
"""

from dataclasses import dataclass

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.prg import fresh_seed, mask
from deepshare.private.engines.gateshare.crypto.ring import decode, encode
from deepshare.private.engines.gateshare.fixedpoint import LARGEST_LOGIT
from deepshare.private.engines.gateshare.lot import Batch
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    WORD,
    ClientOffline,
    ClientOnline,
    InTheClear,
    ProtocolStep,
    ServerOnline,
)
from deepshare.private.engines.gateshare.transport.channel import Channel
from deepshare.private.ir.program import Input
from deepshare.private.runtime.engine import Part


@dataclass(frozen=True, eq=False)
class ClientInput(Batch):
    """Held by the client: its share of the images."""

    x_C: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class InputStep(ProtocolStep):
    """The images."""

    interactive = True

    def online_cost(self, images: int) -> Part:
        """Size of x_S."""
        return Part(client_bytes=WORD * images * self.elements)

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do step 1."""
        x_C = mask(at.seed, (at.lot.images, *self.shape))
        at.held[self.number] = ClientInput(x_C)
        return x_C

    def client_online(self, at: ClientOnline) -> None:
        """Do step 2."""
        mine: ClientInput = at.held[self.number]
        at.server.send(self.number, encode(at.images, self.scale) - mine.x_C)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 2."""
        return at.client.receive_numbers(self.number, (at.images, *self.shape))

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Encode the images."""
        return encode(at.images, self.scale)


def lower_input(builder: ScheduleBuilder, operation: int, node: Input) -> None:
    """Add the step of the images."""
    number, scale = builder.next_number, builder.number_format.fraction
    step = InputStep(number=number, operation=operation, inputs=(), shape=node.shape, scale=scale)
    builder.append(step, result_of=operation)


def output_cost(step: ProtocolStep, images: int) -> Part:
    """Cost of revealing the result of a step."""
    return Part(server_bytes=WORD * images * step.elements, rounds=1)


def send_logits(step: ProtocolStep, y_S: Tensor, noise_bits: int, client: Channel) -> Tensor:
    """Do the server's part of the output, step 3; returns the noise."""
    noise = mask(fresh_seed(), y_S.shape) >> (63 - noise_bits - step.scale)
    client.send(step.number, y_S + noise)
    return noise


def receive_logits(step: ProtocolStep, y_C: Tensor, server: Channel) -> Tensor:
    """Do the client's part of the output, step 4; returns ring elements."""
    return y_C + server.receive_numbers(step.number, tuple(y_C.shape))


def real_logits(logits: Tensor, scale: int) -> Tensor:
    """Decode logits.

    Raises:
        EngineError: One is out of range.
    """
    values = decode(logits, scale)
    if not bool((values.abs() <= LARGEST_LOGIT).all()):
        raise EngineError(f"a logit is beyond {LARGEST_LOGIT:g}: the network's scores are too large to be trusted")
    return values
