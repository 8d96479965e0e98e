"""The dealer: correlated randomness for a network of which it knows the outline alone."""

import os

from deepshare.private.engines.gateshare.crypto.prg import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot
from deepshare.private.engines.gateshare.protocols.step import Dealing
from deepshare.private.engines.gateshare.schedule import Schedule


class LotDealer:
    """Deals for one session, that is for one set of weights, which it never sees.

    Args:
        schedule: Of an outline.

    Attributes:
        id: Of the session.
        seed: Of the masks that hide the weights; for the server.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.id, self.seed = os.urandom(ID_BYTES), fresh_seed()
        self._schedule = schedule
        self._session = {step.number: step.dealer_session(self.seed) for step in schedule.steps}

    def deal(self, images: int) -> tuple[Lot, Lot]:
        """Deal a lot for some images: the server's half and the client's."""
        name = os.urandom(ID_BYTES)
        server, client, own = (Lot(name, fresh_seed(), images) for _ in range(3))
        at = Dealing(session=self._session, own=own, server=server, client=client)
        for step in self._schedule.steps:
            step.deal(at)
        return server, client
