"""The server's inferences of one session, one after the other."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.basis import Basis, agreement, begin
from deepshare.private.engines.gateshare.cost_model import inferences
from deepshare.private.engines.gateshare.metering import Layers, Meter
from deepshare.private.engines.gateshare.preprocessing.lot import ID_BYTES
from deepshare.private.engines.gateshare.preprocessing.sources import ForServer
from deepshare.private.engines.gateshare.server import Rows, Server
from deepshare.private.engines.gateshare.transport import frames
from deepshare.private.engines.gateshare.transport.channel import Channel
from deepshare.private.runtime.engine import Outcome, Part


def serve(
    count: int, client: Channel, basis: Basis, server: Server, offsets: Iterable[tuple[int, list[Tensor]]]
) -> Outcome:
    """A session with one client, from when it is connected.

    Args:
        count: How many images it will ask.
        client: The connection to it.
        basis: What the session begins with.
        server: Whose weights are ready once there are no more offsets.
        offsets: The masked weights, by step.
    """
    program = basis.steps.program
    meter = Meter([client], "server_bytes")
    client.tell(agreement(program, basis.numbers) | {"session": basis.session.hex()})
    begin(basis.session, basis.steps, client)
    wanted = client.hear().get("offsets")
    for number, hidden in offsets:
        if wanted:
            client.send(number, *hidden)
    serving = Serving(server, client, basis.source, meter)
    for images in inferences(program, count):
        serving.answer(images)
    return serving.outcome()


class Serving:
    """A session with one client, from when it has the masked weights.

    Args:
        server: The session.
        client: The connection to the client.
        source: Where lots come from.
        meter: Has measured the session so far.
    """

    def __init__(self, server: Server, client: Channel, source: ForServer, meter: Meter) -> None:
        self._server, self._client, self._source, self._meter = server, client, source, meter
        self._session, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = Layers([client], "server_bytes", len(server.schedule.program.operations))

    def answer(self, images: int) -> None:
        """One inference of some images, offline and online."""
        lots = self._lots(images)
        ahead = frames.receive_ahead(self._client, self._server.schedule, images)
        settled = self._server.settle(lots, ahead)
        self._offline += self._meter.part()
        self._client.tell({"go": images})
        self._layers.begin()
        self._server.answer(settled, self._client, self._layers)
        self._seconds += self._meter.part().seconds

    def outcome(self) -> Outcome:
        """What it cost."""
        return Outcome(None, self._layers.parts, self._offline, self._session, self._seconds)

    def _lots(self, images: int) -> Rows:
        """Agree with the client on lots that neither has used, and take them."""
        while True:
            message = self._client.hear()
            if (wanted := message.get("deal")) is not None:
                if not isinstance(wanted, int) or not 1 <= wanted <= images:
                    raise EngineError(f"the client wants a lot of {wanted} images: it can have 1 to {images}")
                self._source.expect(wanted)
                continue
            names = _named(message, images)
            spent = [name.hex() for name in names if not self._source.is_fresh(name)]
            if not spent:
                break
            self._client.tell({"spent": spent})
        lots = [(self._source.take(name), rows) for name, rows in names.items()]
        self._offline += Part(dealer_bytes=sum(self._source.dealt(lot) for lot, _ in lots))
        if any(rows[-1] >= lot.images for lot, rows in lots):
            raise EngineError("the client takes images that its lots do not have")
        # Not before they are marked here: the client uses them as soon as it hears this.
        self._client.tell({"spent": []})
        return lots


def _named(message: dict[str, Any], images: int) -> dict[bytes, list[int]]:
    """The lots that the client wants to use, and which of their images."""
    try:
        names = {bytes.fromhex(name): [int(row) for row in rows] for name, rows in message["take"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(f"the client does not say which lots it takes ({error})") from error
    sound = all(len(name) == ID_BYTES for name in names)
    sound &= all(rows and rows == sorted(set(rows)) and rows[0] >= 0 for rows in names.values())
    if not sound or sum(map(len, names.values())) != images:
        raise EngineError(f"the client takes lots that are not for {images} images")
    return names
