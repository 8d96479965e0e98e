"""The client's inferences of one session, one after the other."""

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.gateshare import wire
from deepshare.private.gateshare.channel import Channel
from deepshare.private.gateshare.client import Client, Prepared, together
from deepshare.private.gateshare.meter import Layers, Meter
from deepshare.private.gateshare.numbers import LARGEST_LOGIT
from deepshare.private.gateshare.randomness import fresh_seed
from deepshare.private.gateshare.ring import decode
from deepshare.private.gateshare.stock import Stock
from deepshare.private.result import Outcome, Part


class Asking:
    """A session with one server, from when its masked weights are here.

    Args:
        client: The session.
        server: The connection to the server.
        dealer: The connection to the dealer.
        meter: Has measured the session so far.
    """

    def __init__(self, client: Client, server: Channel, dealer: Channel, meter: Meter) -> None:
        self._client, self._server, self._dealer, self._meter = client, server, dealer, meter
        self._stock = Stock()
        self._session, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = Layers([server], "client_bytes", len(client.schedule.program.operations))
        self._logits: list[Tensor] = []

    def ask(self, images: Tensor) -> None:
        """One inference of some images, offline and online."""
        prepared = self._prepared(len(images))
        wire.send_ahead(self._server, self._client.schedule, prepared.ahead)
        self._server.hear()
        self._offline += self._meter.part()
        self._layers.begin()
        self._logits.append(self._client.ask(images, prepared, self._server, self._layers))
        self._seconds += self._meter.part().seconds

    def outcome(self) -> Outcome:
        """The logits and what they cost."""
        steps = self._client.schedule
        logits = real_logits(torch.cat(self._logits), steps.steps[steps.output].scale)
        return Outcome(logits, self._layers.parts, self._offline, self._session, self._seconds)

    def _prepared(self, images: int) -> Prepared:
        """Ask for lots until there are enough images whose shares can all be cut back safely."""
        parts: list[Prepared] = []
        taken: list[tuple[str, list[int]]] = []
        while missing := images - sum(len(part.first) for part in parts):
            for channel in (self._server, self._dealer):
                channel.tell({"deal": missing})
            lot = wire.receive_lot(self._dealer, self._client.schedule, missing, "client")
            self._stock.add(lot)
            made = self._client.prepare(self._stock.take(lot.id), fresh_seed())
            if made.good:
                parts.append(made.only(made.good))
                taken.append((lot.id.hex(), made.good))
        self._server.tell({"take": taken})
        return together(parts)


def real_logits(logits: Tensor, scale: int) -> Tensor:
    """Logits as real numbers.

    Raises:
        EngineError: One is out of range. It is not asked again by itself: that would tell the server something.
    """
    values = decode(logits, scale)
    if not bool((values.abs() <= LARGEST_LOGIT).all()):
        raise EngineError(f"a logit is beyond {LARGEST_LOGIT:g}: the network's scores are too large to be trusted")
    return values
