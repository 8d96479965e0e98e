"""The client of a session host, in this process: its pool, and the session that it keeps."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.client import ClientMaterial, ClientParty, ClientSession
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import PartyMeter, inferences
from deepshare.private.engines.gateshare.lot import ID_BYTES
from deepshare.private.engines.gateshare.main import client_lots, obtain_masked_weights
from deepshare.private.engines.gateshare.preprocessing.pool import DEALT, LotPool, pools_in
from deepshare.private.engines.gateshare.preprocessing.stock import levels
from deepshare.private.engines.gateshare.protocols.schedule import agreed_format, begin, session_id
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.transport.channel import Channel


class PoolClient:
    """Asks with lots of a pool; see `deepshare.private.runtime.preprocessing.HostedClient`.

    Args:
        program: The outline.
        folder: The client's pool, or a folder of several; the first with lots left is used.
        dealings: Ids of the dealings that the server has.
        engine: The engine that pools are for.

    Raises:
        EngineError: It is no pool of this network.
    """

    def __init__(self, program: Program, folder: Path, dealings: Collection[str], engine: str = DEALT) -> None:
        self._program = program
        self._pool = _chosen(folder, program, dealings, engine)
        self._session: ClientSession | None = None
        self._prepared: list[ClientMaterial] = []

    @property
    def limit(self) -> float:
        """The largest number of an image, either way."""
        return self._pool.number_format.limit

    def check(self, images: Tensor) -> None:
        """Refuse images out of range, and more than are left beyond those that are prepared."""
        self._pool.number_format.check(images)
        self._pool.check(len(images) - sum(len(material.logits) for material in self._prepared))

    def close(self) -> None:
        """Close its pool."""
        self._pool.close()

    def left(self) -> int:
        """Images that are left."""
        return self._pool.left()

    def low(self) -> str:
        """A line if the pool is low."""
        return "; ".join(level.warning for level in levels(self._pool.folder) if level.warning)

    def prepare(self, channel: Channel, count: int) -> None:
        """Agree on lots, and do the first inference's offline phase."""
        names = self._pool.names()[: 2 * count + 16]
        channel.send_message(
            {
                "images": count,
                "outline": outline.digest(self._program),
                "session": self._pool.session.hex(),
                "lots": [name.hex() for name in names],
            }
        )
        said = channel.receive_message()
        with torch.no_grad():
            if self._session is None:
                self._session = self._set_up(channel, said)
            else:
                self._doubt(said)
            self._prepared = [self._session.prepare(max(self._inferences(count)))]

    def infer(self, images: Tensor) -> None:
        """Ask images, as many as were prepared."""
        session = self._begun()
        with torch.no_grad():
            for batch in images.split(max(self._inferences(len(images)))):
                session.infer(batch, self._prepared.pop() if self._prepared else session.prepare(len(batch)))

    def _inferences(self, count: int) -> list[int]:
        return inferences(self._program, count, dealt=self._pool.dealt)

    def outcome(self) -> Outcome:
        """Logits and cost since the last outcome."""
        return self._begun().outcome()

    def _begun(self) -> ClientSession:
        if self._session is None:
            raise AssertionError("nothing was prepared")
        return self._session

    def _set_up(self, channel: Channel, said: dict[str, Any]) -> ClientSession:
        meter = PartyMeter([channel], "client_bytes")
        number_format, session = agreed_format(said, self._program), session_id(said)
        steps = schedule(self._program, number_format, dealt=self._pool.dealt)
        lots = client_lots(self._pool, session, steps, channel)
        self._doubt(said)
        begin(session, steps, channel)
        client = ClientParty(steps, obtain_masked_weights(channel, steps, self._pool))
        return ClientSession(client, channel, lots, meter)

    def _doubt(self, said: dict[str, Any]) -> None:
        """Put lots aside that the server calls spent."""
        spent = said.get("spent")
        if not isinstance(spent, list):
            raise EngineError("the server does not say which lots are spent: install the same deepshare")
        names = set(self._pool.names())
        try:
            self._pool.doubt([name for one in spent if len(name := bytes.fromhex(one)) == ID_BYTES and name in names])
        except (TypeError, ValueError) as error:
            raise EngineError("the server does not say which lots are spent: install the same deepshare") from error


def _chosen(folder: Path, program: Program, dealings: Collection[str], engine: str) -> LotPool:
    """The first pool of a network and a server that has lots left."""
    found, digest = pools_in(folder, "client", engine), outline.digest(program)
    mine = [path for path, about in found if about.get("outline") == digest and about.get("session") in dealings]
    paths = mine or [found[0][0]]
    pools = [LotPool(path, "client", program) for path in paths]
    return next((pool for pool in pools if pool.left()), pools[0])
