"""Schedules: the steps of a program, the same for every party; the agreement on one; frames before the images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.hinted import (
    HintedLayer,
    hint_cost,
    hinted_cost,
    secret_cost,
)
from deepshare.private.engines.gateshare.crypto.homomorphic import products_cost
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import MARGIN, NumberFormat
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot, Piece
from deepshare.private.engines.gateshare.protocols.affine import AffineLayer
from deepshare.private.engines.gateshare.protocols.step import EncryptedProduct, ProtocolStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program, Shape
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel, RefusalError

PROTOCOL = 2
"""Rises with every change of what a party computes from the same lots and messages."""

LOT_START = 0
"""Number of the frames that begin a lot, and of the client openings."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps, each after those that it reads.

    Attributes:
        program: What they do; of an outline or whole.
        number_format: The number format.
        steps: The steps.
        output: Number of the step that gives the logits.
    """

    program: Program
    number_format: NumberFormat
    steps: tuple[ProtocolStep, ...]
    output: int

    @property
    def dealt(self) -> bool:
        """True if a dealer makes lots; else the two parties do."""
        return self.steps[0].dealt

    @property
    def unsafe_shares(self) -> float:
        """Expected number of shares of an image that cannot be truncated safely."""
        return sum(step.unsafe_shares for step in self.steps)

    @property
    def noise(self) -> int | None:
        """Bits of the noise on logits; None for classes, which are whole numbers and exact."""
        return None if self.program.hides_scores else self.number_format.noise

    def masked_weight_shapes(self) -> dict[int, list[Shape]]:
        """By step number, what the server sends to the client once per session."""
        shapes = {step.number: step.masked_weight_shapes() for step in self.steps}
        return {number: found for number, found in shapes.items() if found}

    def dealt_bytes(self, images: int, party: Holder) -> dict[Piece, int]:
        """Bytes of every piece of a lot, in the order of files and frames."""
        sizes = ((step.number, step.dealt_bytes(images, party)) for step in self.steps)
        return {(number, name): size for number, named in sizes for name, size in named.items()}

    def lot_bytes(self, images: int, party: Holder) -> int:
        """Bytes of a lot."""
        return ID_BYTES + SEED_BYTES + sum(self.dealt_bytes(images, party).values())

    def hinted_layers(self) -> list[HintedLayer]:
        """Layers that are multiplied by weights under encryption, without a dealer."""
        return [layer for step in self.steps for layer in step.hinted_layers()]

    def encrypted(self, images: int) -> list[tuple[ProtocolStep, EncryptedProduct]]:
        """Products of numbers of both parties under encryption, without a dealer."""
        found = ((step, step.encrypted(images)) for step in self.steps)
        return [(step, product) for step, product in found if product is not None]

    def affine_layers(self) -> "list[AffineLayer]":
        """Steps with alpha and beta, without a dealer."""
        layers = (step.affine_layer() for step in self.steps)
        return [layer for layer in layers if layer is not None]

    def making_cost(self, images: int) -> Part:
        """Bytes of both parties to make lots for some images together, where there is no dealer.

        They are exact but for products of two numbers, whose ciphertexts are of sizes that were measured.
        """
        cost = sum((step.transfer_cost(images) for step in self.steps), secret_cost(self.hinted_layers(), images))
        for step in self.steps:
            if layers := step.hinted_layers():
                cost += hinted_cost(layers, images)
        return cost + products_cost(product.count for _, product in self.encrypted(images))

    def hint_cost(self, batches: Sequence[int]) -> Part:
        """Bytes of hints for batches of so many images on one connection, where there is no dealer."""
        return hint_cost(self.hinted_layers(), batches)

    def client_openings(self) -> dict[Piece, Shape]:
        """Pieces that the client sends before each image, in the order of the frame."""
        ordered = sorted(
            (not step.opened_first, piece[0], piece, shape)
            for step in self.steps
            for piece, shape in step.client_openings().items()
        )
        return {piece: shape for _, _, piece, shape in ordered}

    def name(self, number: int) -> str:
        """The layer that a step belongs to."""
        return self.program.operations[self.steps[number].operation].name

    def run(self, do: Callable[[ProtocolStep, list[Tensor]], Tensor]) -> Tensor:
        """Do one step after the other, forget results that nobody reads any more, and return the output."""
        last = {source: step.number for step in self.steps for source in step.inputs}
        last[self.output] = len(self.steps)
        values: dict[int, Tensor] = {}
        for step in self.steps:
            values[step.number] = do(step, [values[source] for source in step.inputs])
            for source in set(step.inputs):
                if last[source] == step.number:
                    del values[source]
        return values[self.output]


@dataclass(eq=False)
class ScheduleBuilder:
    """Steps of a program in the making.

    Results carry their scale. Linear layers, gates and averages leave a larger one; results are truncated only where a
    step needs the scale of activations.

    Attributes:
        program: The program.
        number_format: The number format.
        dealt: Whether a dealer makes lots.
        steps: The steps so far.
        at: By operation, the step that has its result.
        pending: By operation, how to add the last steps of those that are only begun.
    """

    program: Program
    number_format: NumberFormat
    dealt: bool = True
    steps: list[ProtocolStep] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    pending: dict[int, Callable[[], None]] = field(default_factory=dict)
    _early: list[bool] = field(default_factory=list)
    _truncated: dict[tuple[int, int], int] = field(default_factory=dict)
    _extra_labels: int = 0

    @property
    def next_number(self) -> int:
        """Number of the step that is added next."""
        return len(self.steps)

    def append(self, step: ProtocolStep, result_of: int | None = None) -> int:
        """Add a step, which may give the result of an operation; returns its number."""
        self.steps.append(replace(step, dealt=self.dealt))
        self._early.append(not self.dealt and step.is_early([self._early[source] for source in step.inputs]))
        if result_of is not None:
            self.at[result_of] = step.number
        return step.number

    def is_early(self, number: int) -> bool:
        """Return True if the client's share of a step's result follows from transfers alone, without a dealer."""
        return self._early[number]

    def result(self, operation: int) -> int:
        """The step that has the result of an operation; the steps of one that is begun are added now."""
        if operation in self.pending:
            self.pending.pop(operation)()
        return self.at[operation]

    def finish_pending(self) -> None:
        """Add the last steps of all operations that are only begun."""
        for operation in tuple(self.pending):
            self.result(operation)

    def at_activation_scale(self, operation: int) -> int:
        """The step that has the result of an operation at the scale of activations."""
        bits = self.number_format.ranges[operation] - MARGIN
        return self.truncated(operation, self.result(operation), self.number_format.fraction, bits)

    def truncated(self, operation: int, source: int, scale: int, bits: int) -> int:
        """The step that has a result at a smaller scale.

        Args:
            operation: That the truncation belongs to.
            source: The step that is truncated.
            scale: Fractional bits of the result.
            bits: That the result has at the most, at the scale of activations.
        """
        step = self.steps[source]
        if step.scale == scale:
            return source
        if (source, scale) not in self._truncated:
            truncation = TruncationStep(
                number=self.next_number,
                operation=operation,
                inputs=(source,),
                shape=step.shape,
                scale=scale,
                by=step.scale - scale,
                window=1 << (bits + step.scale - self.number_format.fraction),
            )
            self._truncated[source, scale] = self.append(truncation)
        return self._truncated[source, scale]

    def extra_label(self) -> int:
        """A label for the weights of a layer that is no operation: a number after those of all operations."""
        self._extra_labels += 1
        return len(self.program.operations) + self._extra_labels - 1


def begin(session: bytes, steps: Schedule, channel: Channel) -> None:
    """From now on a channel carries frames of one session."""
    channel.session, channel.names = session, steps.name


def offer(program: Program, number_format: NumberFormat) -> dict[str, Any]:
    """A message with everything that all parties must have in common."""
    return {"protocol": PROTOCOL, "outline": outline.digest(program), "numbers": number_format.dump()}


def agreed_format(message: dict[str, Any], program: Program) -> NumberFormat:
    """The number format of a server that has the same network and plan.

    Raises:
        EngineError: It has another, or another version of the protocol.
    """
    if message.get("protocol") != PROTOCOL:
        raise EngineError("the server follows another version of the protocol: install the same deepshare")
    if message.get("outline") != outline.digest(program):
        raise RefusalError("the server has another network or plan than was agreed: ask again")
    return NumberFormat.parse(message.get("numbers"), program)


def session_id(message: dict[str, Any]) -> bytes:
    """The id of a session.

    Raises:
        EngineError: There is none.
    """
    try:
        session = bytes.fromhex(message["session"])
    except (KeyError, TypeError, ValueError):
        session = b""
    if len(session) != ID_BYTES:
        raise RefusalError("the session has no name: install the same deepshare everywhere")
    return session


def send_lot(channel: Channel, schedule: Schedule, lot: Lot, party: Holder) -> None:
    """Send a party its half of a lot."""
    channel.send(LOT_START, lot.id, lot.seed)
    for piece in schedule.dealt_bytes(lot.images, party):
        channel.send(piece[0], lot.pieces[piece])


def receive_lot(channel: Channel, schedule: Schedule, images: int, party: Holder) -> Lot:
    """Receive one's half of a lot."""
    start = channel.receive(LOT_START, ID_BYTES + SEED_BYTES).tobytes()
    wanted = schedule.dealt_bytes(images, party)
    pieces = {piece: channel.receive(piece[0], size) for piece, size in wanted.items()}
    return Lot(start[:ID_BYTES], start[ID_BYTES:], images, pieces)


def receive_masked_weights(channel: Channel, schedule: Schedule) -> Iterator[tuple[int, list[Tensor]]]:
    """Receive all masked weights, by step number, one after the other."""
    for number, shapes in schedule.masked_weight_shapes().items():
        numbers = channel.receive_numbers(number, (sum(map(_count, shapes)),))
        yield number, _split(numbers, shapes)


def dump_masked_weights(masked_weights: Mapping[int, Sequence[Tensor]]) -> bytes:
    """Masked weights as bytes, to be kept."""
    return b"".join(tensor.numpy().tobytes() for step in masked_weights.values() for tensor in step)


def parse_masked_weights(data: bytearray, schedule: Schedule) -> dict[int, list[Tensor]]:
    """Read what `dump_masked_weights` wrote."""
    if not data:  # torch reads no empty buffers, and pools without masked weights were written with an empty file
        return {}
    shapes = schedule.masked_weight_shapes()
    parts = iter(
        _split(torch.frombuffer(data, dtype=torch.int64), [shape for step in shapes.values() for shape in step])
    )
    return {number: [next(parts) for _ in step] for number, step in shapes.items()}


def send_client_openings(channel: Channel, schedule: Schedule, openings: Mapping[Piece, Tensor]) -> None:
    """Send what the server needs before the images, as one frame."""
    channel.send(LOT_START, *(openings[piece] for piece in schedule.client_openings()))


def receive_client_openings(channel: Channel, schedule: Schedule, images: int) -> dict[Piece, Tensor]:
    """Receive what the client sends before the images."""
    shapes = {piece: (images, *shape) for piece, shape in schedule.client_openings().items()}
    numbers = channel.receive_numbers(LOT_START, (sum(map(_count, shapes.values())),))
    return dict(zip(shapes, _split(numbers, list(shapes.values())), strict=True))


def _split(numbers: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(numbers, [_count(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
