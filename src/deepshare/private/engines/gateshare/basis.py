"""What parties agree on before the first lot: the number format, the session, and where lots come from."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.prg import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import Numbers, calibrate
from deepshare.private.engines.gateshare.preprocessing.lot import ID_BYTES
from deepshare.private.engines.gateshare.preprocessing.pool import Pool
from deepshare.private.engines.gateshare.preprocessing.sources import AskedFor, ForClient, ForServer, FromPool, Sent
from deepshare.private.engines.gateshare.schedule import Schedule
from deepshare.private.engines.gateshare.transport import frames
from deepshare.private.engines.gateshare.transport.channel import Channel
from deepshare.private.engines.gateshare.weights import digest
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program

Origin = Pool | Channel
"""Where lots come from: a pool on disk, or a connection to a dealer."""


@dataclass(frozen=True, eq=False)
class Basis:
    """What the server begins a session with.

    Attributes:
        numbers: The number format.
        steps: What there is to do.
        session: Its id.
        seed: Of the masks that hide the weights.
        source: Where lots come from.
    """

    numbers: Numbers
    steps: Schedule
    session: bytes
    seed: bytes
    source: ForServer


def server_basis(origin: Origin, program: Program) -> Basis:
    """Begin a session: with a pool as it was dealt, or with a dealer after calibration."""
    if isinstance(origin, Pool):
        origin.bind(digest(program))
        steps = schedule(program, origin.numbers)
        return Basis(origin.numbers, steps, origin.session, origin.seed, FromPool(origin))
    numbers = calibrate(program)
    steps = schedule(program, numbers)
    origin.tell(agreement(program, numbers))
    session = session_of(origin.hear())
    begin(session, steps, origin)
    return Basis(numbers, steps, session, origin.receive(0, SEED_BYTES).tobytes(), Sent(steps, origin))


def client_source(origin: Origin, numbers: Numbers, session: bytes, steps: Schedule, server: Channel) -> ForClient:
    """Where the client's lots come from, once it knows the server's session.

    Raises:
        EngineError: Its pool, or the dealer, belongs to another session.
    """
    if isinstance(origin, Pool):
        if (origin.session, origin.numbers) != (session, numbers):
            raise EngineError("the server's pool is of another dealing than this one: take two that belong together")
        return FromPool(origin)
    if session_of(origin.hear()) != session:
        raise EngineError("the dealer serves another session: start all parties anew")
    begin(session, steps, origin)
    return AskedFor(steps, origin, server)


def offsets_from(server: Channel, steps: Schedule, origin: Origin) -> dict[int, list[Tensor]]:
    """The masked weights: from the server, or from the pool if they came before."""
    kept = origin.offsets() if isinstance(origin, Pool) else None
    server.tell({"offsets": kept is None})
    if kept is not None:
        return frames.parse_offsets(kept, steps)
    offsets = frames.receive_offsets(server, steps)
    if isinstance(origin, Pool):
        origin.keep_offsets(frames.dump_offsets(offsets))
    return offsets


def begin(session: bytes, steps: Schedule, channel: Channel) -> None:
    """From now on a channel carries frames of one session."""
    channel.session, channel.names = session, steps.name


def agreement(program: Program, numbers: Numbers) -> dict[str, Any]:
    """What all parties must have in common."""
    return {"outline": outline.digest(program), "numbers": numbers.dump()}


def agreed(message: dict[str, Any], program: Program) -> Numbers:
    """The number format of a server that has the same network and plan.

    Raises:
        EngineError: It has another.
    """
    if message.get("outline") != outline.digest(program):
        raise EngineError("the server has another network or plan than was agreed: ask again")
    return Numbers.parse(message.get("numbers"), program)


def session_of(message: dict[str, Any]) -> bytes:
    """The id of a session.

    Raises:
        EngineError: There is none.
    """
    try:
        session = bytes.fromhex(message["session"])
    except (KeyError, TypeError, ValueError):
        session = b""
    if len(session) != ID_BYTES:
        raise EngineError("the session has no name: install the same deepshare everywhere")
    return session
