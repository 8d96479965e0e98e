"""The server, which owns the weights and sees masked tensors only: session setup, and its part of inferences."""

import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import LayerMeter, PartyMeter
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import ComparisonBits, calibrate
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot, LotBatch, Piece
from deepshare.private.engines.gateshare.preprocessing.dealer import ServerLotsFromDealer
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.protocols.local import output_cost, send_logits
from deepshare.private.engines.gateshare.protocols.schedule import (
    Schedule,
    begin,
    offer,
    receive_client_openings,
    session_id,
)
from deepshare.private.engines.gateshare.protocols.step import ProtocolStep, ServerOffline, ServerOnline
from deepshare.private.ir.program import Program, hidden_tensors
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.transport.channel import Channel, RefusalError

Origin = LotPool | Channel | None
"""Where lots come from: a pool on disk, a connection to a dealer, or none: then the parties make them together."""

# Attempts to agree on lots for one inference: a client has to name spent ones, or useless ones, all the time for more.
MOST_ROUNDS = 32


@dataclass(frozen=True, eq=False)
class ServerMaterial:
    """Everything that the server has for some images before they arrive; good for one inference.

    Attributes:
        images: How many images.
        held: By step number.
    """

    images: int
    held: Mapping[int, Any]


class ServerParty:
    """The owner of one set of weights, hidden by one set of masks.

    Args:
        schedule: Of a program with its weights.
        seed: Of the masks, from the dealer.
    """

    def __init__(self, schedule: Schedule, seed: bytes) -> None:
        self.schedule, self._seed = schedule, seed
        self._digest, self._versions = weights_digest(schedule.program), _versions(schedule.program)
        self.session: dict[int, Any] = {}

    def masked_weights(self) -> Iterator[tuple[int, list[Tensor]]]:
        """Prepare the weights of all steps, one after the other, and give those that the client gets, masked."""
        for step in self.schedule.steps:
            self.session[step.number], masked = step.server_session(self._seed)
            if masked:
                yield step.number, masked

    def preprocess(self, lots: Sequence[tuple[Lot, Sequence[int]]], openings: Mapping[Piece, Tensor]) -> ServerMaterial:
        """Do all that can be done before the images arrive.

        Args:
            lots: The lots, and which of their images are used.
            openings: What the client sent.

        Raises:
            EngineError: The weights have changed since the session began.
        """
        if (versions := _versions(self.schedule.program)) != self._versions:
            if weights_digest(self.schedule.program) != self._digest:
                raise EngineError("the weights have changed since their masks were made: start another session")
            self._versions = versions
        at = ServerOffline(session=self.session, lot=LotBatch(lots), openings=openings)
        for step in self.schedule.steps:
            step.server_offline(at)
        return ServerMaterial(at.lot.images, at.held)

    def infer(self, material: ServerMaterial, client: Channel, layers: LayerMeter) -> Tensor:
        """Run one inference; returns the noise that was added to the logits."""
        images = material.images
        at = ServerOnline(images=images, session=self.session, held=material.held, client=client)

        def do(step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
            result = step.server_online(inputs, at)
            layers.end(step.operation, step.online_cost(images))
            return result

        share, last = self.schedule.run(do), self.schedule.steps[self.schedule.output]
        noise = send_logits(last, share, self.schedule.noise, client)
        layers.end(last.operation, output_cost(last, images))
        return noise


class ServerLots(Protocol):
    """A source of the server's lots."""

    def expect(self, images: int) -> None:
        """Receive the lot that the client has asked the dealer for."""

    def is_fresh(self, name: bytes) -> bool:
        """Return True if a lot is there and was never taken."""

    def take_all(self, names: Sequence[bytes]) -> list[Lot]:
        """Take lots out for good."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


class ServerSession:
    """The inferences for one client, one after the other.

    Args:
        server: The server.
        client: The connection to the client.
        lots: Where lots come from.
        meter: Has measured the session setup.
    """

    def __init__(self, server: ServerParty, client: Channel, lots: ServerLots, meter: PartyMeter) -> None:
        self._server, self._client, self._lots, self._meter = server, client, lots, meter
        self._setup, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = LayerMeter([client], "server_bytes", len(server.schedule.program.operations))

    def answer(self, images: int) -> Generator[None, None, None]:
        """Run one inference of some images, offline and online; yields once, until the images come."""
        lots = self._take_lots(images)
        openings = receive_client_openings(self._client, self._server.schedule, images)
        material = self._server.preprocess(lots, openings)
        self._offline += self._meter.part()
        self._client.send_message({"go": images})
        yield
        self._meter.begin()
        self._layers.begin()
        self._server.infer(material, self._client, self._layers)
        self._seconds += self._meter.part().seconds
        self._client.receive_message()  # the same whatever the client thinks of its logits

    def outcome(self) -> Outcome:
        """The cost since the last outcome."""
        found = Outcome(None, self._layers.parts, self._offline, self._setup, self._seconds)
        self._layers = LayerMeter([self._client], "server_bytes", len(self._server.schedule.program.operations))
        self._offline, self._setup, self._seconds = Part(), Part(), 0.0
        self._meter.begin()
        return found

    def _take_lots(self, images: int) -> list[tuple[Lot, list[int]]]:
        """Agree with the client on lots that neither has used, and take them."""
        names = self._agree(images)
        lots = list(zip(self._lots.take_all(list(names)), names.values(), strict=True))
        self._offline += Part(dealer_bytes=sum(self._lots.dealt_bytes(lot) for lot, _ in lots))
        if any(rows[-1] >= lot.images for lot, rows in lots):
            raise RefusalError("the client takes images that its lots do not have")
        # Not before they are marked here: the client uses them as soon as it hears this.
        self._client.send_message({"spent": []})
        return lots

    def _agree(self, images: int) -> dict[bytes, list[int]]:
        for attempt in range(MOST_ROUNDS):
            message = self._client.receive_message()
            if attempt == 0:
                self._meter.begin()  # until now the client had other work
            if (wanted := message.get("deal")) is not None:
                if not isinstance(wanted, int) or not 1 <= wanted <= images:
                    raise RefusalError(f"the client wants a lot of more images than the {images} that it asks")
                self._lots.expect(wanted)
                continue
            names = taken_lots(message, images)
            spent = [name.hex() for name in names if not self._lots.is_fresh(name)]
            if not spent:
                return names
            self._client.send_message({"spent": spent})
        raise RefusalError(f"no fresh lots after {MOST_ROUNDS} attempts: deal anew")


def taken_lots(message: dict[str, Any], images: int) -> dict[bytes, list[int]]:
    """The lots that the client wants to use, and which of their images.

    Raises:
        EngineError: They are not for so many images.
    """
    try:
        names = {bytes.fromhex(name): [int(row) for row in rows] for name, rows in message["take"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RefusalError("the client does not say which lots it takes") from error
    sound = all(len(name) == ID_BYTES for name in names)
    sound &= all(rows and rows == sorted(set(rows)) and rows[0] >= 0 for rows in names.values())
    if not sound or sum(map(len, names.values())) != images:
        raise RefusalError(f"the client takes lots that are not for {images} images")
    return names


@dataclass(frozen=True, eq=False)
class SessionSetup:
    """Everything that the server begins a session with.

    Attributes:
        schedule: The steps.
        session: Id of the session.
        seed: Of the masks that hide the weights.
        lots: Where lots come from; None where both parties make them.
    """

    schedule: Schedule
    session: bytes
    seed: bytes
    lots: ServerLots | None


def server_setup(origin: Origin, program: Program, comparison_bits: ComparisonBits | None = None) -> SessionSetup:
    """Begin a session: with a pool as it was dealt, else after calibration, with a dealer or the client alone."""
    if isinstance(origin, LotPool):
        origin.bind(weights_digest(program))
        steps = schedule(program, origin.number_format, dealt=origin.dealt)
        return SessionSetup(steps, origin.session, origin.seed, origin)
    number_format = calibrate(program, comparison_bits=comparison_bits, dealt=origin is not None)
    steps = schedule(program, number_format, dealt=origin is not None)
    if origin is None:
        return SessionSetup(steps, os.urandom(ID_BYTES), b"", None)
    origin.send_message(offer(program, number_format))
    session = session_id(origin.receive_message())
    begin(session, steps, origin)
    seed = origin.receive(0, SEED_BYTES).tobytes()
    return SessionSetup(steps, session, seed, ServerLotsFromDealer(steps, origin))


def weights_digest(program: Program) -> bytes:
    """All weights in 32 bytes; one set of masks belongs to one digest."""
    result = hashlib.blake2b(digest_size=32)
    for operation in program.operations:
        for name, tensor in hidden_tensors(operation).items():
            result.update(f"{operation.name} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            result.update(tensor.contiguous().numpy().data)
    return result.digest()


def _versions(program: Program) -> list[tuple[int, int]]:
    """Addresses of all weights, and how often they were written to: equal ones need no digest."""
    tensors = (tensor for operation in program.operations for tensor in hidden_tensors(operation).values())
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
