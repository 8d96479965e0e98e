"""The client's inferences of one session, one after the other."""

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.client import Client, Prepared, together
from deepshare.private.engines.gateshare.crypto.prg import fresh_seed
from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.fixedpoint import LARGEST_LOGIT
from deepshare.private.engines.gateshare.metering import Layers, Meter
from deepshare.private.engines.gateshare.preprocessing.sources import ForClient
from deepshare.private.engines.gateshare.transport import frames
from deepshare.private.engines.gateshare.transport.channel import Channel
from deepshare.private.runtime.engine import Outcome, Part


class Asking:
    """A session with one server, from when its masked weights are here.

    Args:
        client: The session.
        server: The connection to the server.
        source: Where lots come from.
        meter: Has measured the session so far.
    """

    def __init__(self, client: Client, server: Channel, source: ForClient, meter: Meter) -> None:
        self._client, self._server, self._source, self._meter = client, server, source, meter
        self._session, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = Layers([server], "client_bytes", len(client.schedule.program.operations))
        self._logits: list[Tensor] = []

    def ask(self, images: Tensor) -> None:
        """One inference of some images, offline and online."""
        prepared = self._prepared(len(images))
        frames.send_ahead(self._server, self._client.schedule, prepared.ahead)
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
        """Get lots until there are enough that the server has not used either, and whose shares can all be cut back."""
        parts: dict[str, tuple[list[int], Prepared]] = {}
        while True:
            while missing := images - sum(len(rows) for rows, _ in parts.values()):
                for lot in self._source.get(missing):
                    self._offline += Part(dealer_bytes=self._source.dealt(lot))
                    made = self._client.prepare(lot, fresh_seed())
                    if made.good:
                        parts[lot.id.hex()] = made.good, made.only(made.good)
                    else:
                        self._source.discard(lot.id)
            self._server.tell({"take": [(name, rows) for name, (rows, _) in parts.items()]})
            spent = self._server.hear().get("spent")
            if not isinstance(spent, list):
                raise EngineError("the server does not say which lots are spent: install the same deepshare")
            if not spent:
                return together([part for _, part in parts.values()])
            parts = {name: part for name, part in parts.items() if name not in spent}


def real_logits(logits: Tensor, scale: int) -> Tensor:
    """Logits as real numbers.

    Raises:
        EngineError: One is out of range. It is not asked again by itself: that would tell the server something.
    """
    values = decode(logits, scale)
    if not bool((values.abs() <= LARGEST_LOGIT).all()):
        raise EngineError(f"a logit is beyond {LARGEST_LOGIT:g}: the network's scores are too large to be trusted")
    return values
