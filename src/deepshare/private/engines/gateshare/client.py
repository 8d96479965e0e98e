"""The client: owns the images, computes all its shares before they arrive, and alone receives the logits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.cost_model import LayerMeter, PartyMeter
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Batch, Lot, LotBatch, Piece
from deepshare.private.engines.gateshare.protocols.local import (
    output_cost,
    real_classes,
    real_logits,
    receive_logits,
)
from deepshare.private.engines.gateshare.protocols.schedule import Schedule, send_client_openings
from deepshare.private.engines.gateshare.protocols.step import ClientOffline, ClientOnline, ProtocolStep
from deepshare.private.runtime.outcome import AnswerError, Outcome, Part
from deepshare.private.transport.channel import Channel


@dataclass(frozen=True, eq=False)
class ClientMaterial(Batch):
    """Everything that the client has for some images before they arrive; good for one inference.

    Attributes:
        logits: Its share of the logits.
        openings: What it sends to the server before the images.
        held: By step number.
        unsafe: (images,), whether some share cannot be truncated safely.
    """

    logits: Tensor
    openings: dict[Piece, Tensor]
    held: dict[int, Batch]
    unsafe: Tensor

    @property
    def usable(self) -> list[int]:
        """The images that can be used."""
        return [row for row, unsafe in enumerate(self.unsafe.tolist()) if not unsafe]


class ClientParty:
    """One client in a session with one server.

    Args:
        schedule: Of an outline.
        masked_weights: By step number, as the server sent them; or in their order, each prepared as it comes.
    """

    def __init__(
        self, schedule: Schedule, masked_weights: Mapping[int, list[Tensor]] | Iterable[tuple[int, list[Tensor]]]
    ) -> None:
        self.schedule = schedule
        given = masked_weights.items() if isinstance(masked_weights, Mapping) else masked_weights
        self.session = {number: schedule.steps[number].client_session(masked) for number, masked in given}
        for step in schedule.steps:
            if step.number not in self.session:
                self.session[step.number] = step.client_session([])
        self._interactive = [step for step in schedule.steps if step.interactive]

    def preprocess(self, lot: Lot, seed: bytes) -> ClientMaterial:
        """Compute all shares of a lot.

        Args:
            lot: This party's half.
            seed: A new one of its own, for its share of the images; not even the dealer knows it.
        """
        at = ClientOffline(session=self.session, lot=LotBatch([(lot, range(lot.images))]), seed=seed)

        def do(step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
            return step.client_offline(inputs, at)

        logits = self.schedule.run(do)
        unsafe = torch.tensor([row in at.unsafe for row in range(lot.images)])
        return ClientMaterial(logits, at.openings, at.held, unsafe)

    def infer(self, images: Tensor, material: ClientMaterial, server: Channel, layers: LayerMeter) -> Tensor:
        """Run one inference; returns the logits as ring elements at the scale of the output."""
        at = ClientOnline(images=images, held=material.held, server=server, waited=layers.begin)
        for step in self._interactive:
            step.client_online(at)
            layers.end(step.operation, step.online_cost(len(images)))
        last = self.schedule.steps[self.schedule.output]
        logits = receive_logits(last, material.logits, server)
        layers.begin()
        layers.end(last.operation, output_cost(last, len(images)))
        return logits


class ClientLots(Protocol):
    """A source of the client's lots."""

    def check(self, images: int) -> None:
        """Refuse more images than there will be lots for, before any is spent."""

    def get(self, images: int) -> list[Lot]:
        """Lots for some images, each for the first and the last time."""

    def discard(self, name: bytes) -> None:
        """Give up a lot that cannot be used."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Bytes of a lot that no dealer counts any more."""


# A server that calls one lot spent after the other would use them all up; it has said before which ones are fresh.
MOST_ROUNDS = 2


class ClientSession:
    """The inferences of a client, one after the other.

    Args:
        client: The client.
        server: The connection to the server.
        lots: Where lots come from.
        meter: Has measured the session setup.
    """

    def __init__(self, client: ClientParty, server: Channel, lots: ClientLots, meter: PartyMeter) -> None:
        self._client, self._server, self._lots, self._meter = client, server, lots, meter
        self._setup, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = LayerMeter([server], "client_bytes", len(client.schedule.program.operations))
        self._logits: list[Tensor] = []

    def ask(self, images: Tensor, agreed: Callable[[], None] | None = None) -> None:
        """Run one inference of some images, offline and online; see `prepare`."""
        self.infer(images, self.prepare(len(images), agreed))

    def prepare(self, images: int, agreed: Callable[[], None] | None = None) -> ClientMaterial:
        """Do all of an inference that comes before its images.

        Args:
            images: How many images.
            agreed: Called once the parties have agreed on lots and need no others for this inference.
        """
        material = self._preprocess(images)
        if agreed is not None:
            agreed()
        send_client_openings(self._server, self._client.schedule, material.openings)
        self._server.receive_message()
        self._offline += self._meter.part()
        return material

    def infer(self, images: Tensor, material: ClientMaterial) -> None:
        """Run the images through; their logits are looked at after the last message, which is always the same."""
        self._meter.begin()
        self._layers.begin()
        self._logits.append(self._client.infer(images, material, self._server, self._layers))
        self._seconds += self._meter.part().seconds
        self._server.send_message({"end": True})

    def outcome(self) -> Outcome:
        """The logits and their cost since the last outcome."""
        schedule, scores = self._client.schedule, torch.cat(self._logits)
        layers, offline, setup, seconds = self._layers.parts, self._offline, self._setup, self._seconds
        self._layers = LayerMeter([self._server], "client_bytes", len(schedule.program.operations))
        self._meter.begin()
        self._logits, self._offline, self._setup, self._seconds = [], Part(), Part(), 0.0
        scale, program = schedule.steps[schedule.output].scale, schedule.program
        try:
            if program.hides_scores:
                logits = real_classes(scores, scale, program.classes)
            else:
                logits = real_logits(scores, scale)
        except AnswerError as error:
            return Outcome(None, layers, offline, setup, seconds, str(error))
        return Outcome(logits, layers, offline, setup, seconds)

    def _preprocess(self, images: int) -> ClientMaterial:
        """Preprocess lots until there are enough usable images that the server has not spent either."""
        parts: dict[str, tuple[list[int], ClientMaterial]] = {}
        for _ in range(MOST_ROUNDS):
            while missing := images - sum(len(rows) for rows, _ in parts.values()):
                lots = self._lots.get(missing)
                while lots:  # a lot that is of no use is gone before the next arrives: it may take gigabytes
                    parts |= self._usable(lots.pop(0))
            self._server.send_message({"take": [(name, rows) for name, (rows, _) in parts.items()]})
            spent = self._server.receive_message().get("spent")
            if not isinstance(spent, list):
                raise EngineError("the server does not say which lots are spent: install the same deepshare")
            if not spent:
                return ClientMaterial.concat([material for _, material in parts.values()])
            parts = {name: part for name, part in parts.items() if name not in spent}
        raise EngineError("the server calls lots spent that it called fresh: it uses up your pool, do not ask it again")

    def _usable(self, lot: Lot) -> dict[str, tuple[list[int], ClientMaterial]]:
        """Preprocess a lot: its usable images, or nothing, by its name."""
        self._offline += Part(dealer_bytes=self._lots.dealt_bytes(lot))
        material = self._client.preprocess(lot, fresh_seed())
        if usable := material.usable:
            return {lot.id.hex(): (usable, material.select(usable))}
        self._lots.discard(lot.id)
        return {}
