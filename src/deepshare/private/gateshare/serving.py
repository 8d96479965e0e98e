"""The server's inferences of one session, one after the other."""

from deepshare.errors import EngineError
from deepshare.private.gateshare import wire
from deepshare.private.gateshare.channel import Channel
from deepshare.private.gateshare.meter import Layers, Meter
from deepshare.private.gateshare.server import Rows, Server
from deepshare.private.gateshare.stock import Stock
from deepshare.private.result import Outcome, Part


class Serving:
    """A session with one client, from when it has the masked weights.

    Args:
        server: The session.
        client: The connection to the client.
        dealer: The connection to the dealer.
        meter: Has measured the session so far.
    """

    def __init__(self, server: Server, client: Channel, dealer: Channel, meter: Meter) -> None:
        self._server, self._client, self._dealer, self._meter = server, client, dealer, meter
        self._stock = Stock()
        self._session, self._offline, self._seconds = meter.part(), Part(), 0.0
        self._layers = Layers([client], "server_bytes", len(server.schedule.program.operations))

    def answer(self, images: int) -> None:
        """One inference of some images, offline and online."""
        lots = self._lots(images)
        ahead = wire.receive_ahead(self._client, self._server.schedule, images)
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
        """Get lots from the dealer as the client asks for them, until it says which images of which lots it takes."""
        while (wanted := (message := self._client.hear()).get("deal")) is not None:
            if not isinstance(wanted, int) or not 1 <= wanted <= images:
                raise EngineError(f"the client wants a lot of {wanted} images: it can have 1 to {images}")
            self._stock.add(wire.receive_lot(self._dealer, self._server.schedule, wanted, "server"))
        try:
            names = [(bytes.fromhex(name), [int(row) for row in rows]) for name, rows in message["take"]]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the client does not say which lots it takes ({error})") from error
        lots = [(self._stock.take(name), rows) for name, rows in names]
        fits = all(rows and rows == sorted(set(rows)) and rows[0] >= 0 and rows[-1] < lot.images for lot, rows in lots)
        if not fits or sum(len(rows) for _, rows in lots) != images:
            raise EngineError(f"the client takes lots that are not for {images} images")
        return lots
