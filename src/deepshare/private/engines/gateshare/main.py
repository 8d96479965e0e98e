"""Each party's process from connecting to the end, and the session setup that comes before the first lot.

Session setup is what parties agree on: the network's outline, the number format, the session, and where lots come from;
then the masked weights go to the client.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.client import ClientLots, ClientParty, ClientSession
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import PartyMeter, inferences
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import (
    COMPARISON_BITS,
    ComparisonBits,
    NumberFormat,
    calibrate,
    comparison_bits_of,
)
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder
from deepshare.private.engines.gateshare.preprocessing.arrival import LotSender
from deepshare.private.engines.gateshare.preprocessing.dealer import (
    ClientLotsFromDealer,
    LotDealer,
    ServerLotsFromDealer,
)
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.preprocessing.together import (
    ClientLotsTogether,
    LotMaker,
    ServerLotsTogether,
)
from deepshare.private.engines.gateshare.protocols.schedule import (
    Schedule,
    dump_masked_weights,
    parse_masked_weights,
    receive_masked_weights,
)
from deepshare.private.engines.gateshare.server import ServerLots, ServerParty, ServerSession, weights_digest
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Task
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.transport.channel import Channel, RefusalError, accept, connect, listen

PROTOCOL = 2
"""Rises with every change of what a party computes from the same lots and messages."""

Origin = LotPool | Channel | None
"""Where lots come from: a pool on disk, a connection to a dealer, or none: then the parties make them together."""


def run(task: Task, ready: Callable[[], None], *, dealt: bool = True) -> Outcome:
    """Do one party's part; see `deepshare.private.runtime.engine.Engine.run`.

    Args:
        task: The party's.
        ready: Called once the parties are connected.
        dealt: Whether a dealer makes lots; else the two parties do.
    """
    with torch.no_grad(), ExitStack() as stack:
        if task.role == "dealer":
            return _run_dealer(task, ready, stack)
        work = _run_server if task.role == "server" else _run_client
        return work(task, ready, stack, dealt)


def _run_server(task: Task, ready: Callable[[], None], stack: ExitStack, dealt: bool) -> Outcome:
    listener = stack.enter_context(listen(task.addresses["server"]))
    origin = _origin(task, stack, "server") if dealt else None
    client = stack.enter_context(closing(accept(listener, "client", task.tls)))
    ready()
    bits = task.options.get(COMPARISON_BITS)
    setup = server_setup(origin, task.program, None if bits is None else comparison_bits_of(bits))
    server = ServerParty(setup.schedule, setup.seed)
    return answer_client(task.count, client, setup, server, server.masked_weights())


def _run_client(task: Task, ready: Callable[[], None], stack: ExitStack, dealt: bool) -> Outcome:
    if task.images is None:
        raise AssertionError("a client has images")
    origin = _origin(task, stack, "client") if dealt else None
    server = stack.enter_context(closing(connect(task.addresses["server"], "server", task.tls)))
    ready()
    meter = PartyMeter([server], "client_bytes")
    offer = server.receive_message()
    number_format, session = agreed_format(offer, task.program), session_id(offer)
    pictures, wrong = task.images, ""
    try:
        number_format.check(pictures)
    except EngineError as error:  # the range is the server's, which is not to learn this: it goes on, with others
        pictures, wrong = torch.zeros_like(pictures), str(error)
    steps = schedule(task.program, number_format, dealt=dealt)
    begin(session, steps, server)
    lots = client_lots(origin, session, steps, server)
    lots.check(task.count)
    together = max(inferences(task.program, task.count, dealt=dealt))
    if isinstance(lots, ClientLotsFromDealer):
        lots.order(together)  # dealt while the masked weights are made
    client = ClientParty(steps, obtain_masked_weights(server, steps, origin) if dealt else ())
    asking = ClientSession(client, server, lots, meter)
    for images in pictures.split(together):
        asking.ask(images)
    if isinstance(lots, ClientLotsFromDealer):
        lots.end()
    outcome = asking.outcome()
    return replace(outcome, logits=None, wrong=wrong) if wrong else outcome


def _run_dealer(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    server, client = _parties(task, stack)
    ready()
    meter = PartyMeter([server, client], "dealer_bytes")
    steps = schedule(task.program, agreed_format(server.receive_message(), task.program))
    dealer = LotDealer(steps)
    for channel in (server, client):
        channel.send_message({"session": dealer.id.hex()})
        begin(dealer.id, steps, channel)
    server.send(0, dealer.seed)
    setup, most, offline = meter.part(), max(inferences(task.program, task.count)), Part()
    to_server, to_client = LotSender(server, steps, "server"), LotSender(client, steps, "client")
    while (images := client.receive_message().get("deal")) is not None:
        if not isinstance(images, int) or not 1 <= images <= most:
            raise EngineError(f"the client wants a lot of {images} images: it can have 1 to {most}")
        meter.begin()
        dealer.deal_to(to_server, to_client, images)
        dealt = meter.part()
        to_server.finish()
        to_client.finish()
        # How long parties take to receive is in their own time.
        offline += dealt + replace(meter.part(), seconds=0.0)
    return Outcome(None, {}, offline, setup)


def _parties(task: Task, stack: ExitStack) -> tuple[Channel, Channel]:
    """Connections of both parties to the dealer."""
    listener = stack.enter_context(listen(task.addresses["dealer"]))
    found = {}
    for _ in range(2):
        channel = stack.enter_context(closing(accept(listener, "party", task.tls)))
        channel.peer = str(channel.receive_message().get("role"))
        found[channel.peer] = channel
    if set(found) != {"server", "client"}:
        raise EngineError(f"{' and '.join(found)} came to the dealer: it serves one server and one client")
    return found["server"], found["client"]


def _origin(task: Task, stack: ExitStack, party: Holder) -> Origin:
    """The party's pool, or a connection to the dealer."""
    if (pool := task.extras.get("pool")) is not None:
        return LotPool(pool, party, task.program)
    if "dealer" in task.options:  # dealer=pool, as there is no other
        raise EngineError("the server uses what was dealt beforehand: give your pool of the same dealing with --pool")
    dealer = stack.enter_context(closing(connect(task.addresses["dealer"], "dealer", task.tls)))
    dealer.send_message({"role": party})
    return dealer


@dataclass(frozen=True, eq=False)
class SessionSetup:
    """What the server begins a session with.

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
    number_format = calibrate(program, comparison_bits=comparison_bits)
    steps = schedule(program, number_format, dealt=origin is not None)
    if origin is None:
        return SessionSetup(steps, os.urandom(ID_BYTES), b"", None)
    origin.send_message(offer(program, number_format))
    session = session_id(origin.receive_message())
    begin(session, steps, origin)
    seed = origin.receive(0, SEED_BYTES).tobytes()
    return SessionSetup(steps, session, seed, ServerLotsFromDealer(steps, origin))


def answer_client(
    count: int,
    client: Channel,
    setup: SessionSetup,
    server: ServerParty,
    masked_weights: Iterable[tuple[int, list[Tensor]]],
) -> Outcome:
    """Answer one client that is connected.

    Args:
        count: How many images it will ask.
        client: The connection to it.
        setup: What the session begins with.
        server: Whose weights are ready once there are no more masked weights.
        masked_weights: By step number.
    """
    steps, meter = setup.schedule, PartyMeter([client], "server_bytes")
    client.send_message(offer(steps.program, steps.number_format) | {"session": setup.session.hex()})
    begin(setup.session, steps, client)
    # "offsets" is what masked weights are called on the wire: parties of earlier releases say so.
    wanted = steps.dealt and client.receive_message().get("offsets")
    for number, masked in masked_weights:
        if wanted:
            client.send(number, *masked)
    lots = setup.lots or ServerLotsTogether(LotMaker.begin(steps, "server", client), client)
    serving = ServerSession(server, client, lots, meter)
    for images in inferences(steps.program, count, dealt=steps.dealt):
        for _ in serving.answer(images):
            pass
    return serving.outcome()


def client_lots(origin: Origin, session: bytes, steps: Schedule, server: Channel) -> ClientLots:
    """Where the client's lots come from, once it knows the server's session.

    Raises:
        EngineError: Its pool, or the dealer, belongs to another session.
    """
    if origin is None:
        return ClientLotsTogether(LotMaker.begin(steps, "client", server), server)
    if isinstance(origin, LotPool):
        if (origin.session, origin.number_format) != (session, steps.number_format):
            raise EngineError("the server's pool is of another dealing than this one: take two that belong together")
        return origin
    if session_id(origin.receive_message()) != session:
        raise EngineError("the dealer serves another session: start all parties anew")
    begin(session, steps, origin)
    return ClientLotsFromDealer(steps, origin, server)


def obtain_masked_weights(server: Channel, steps: Schedule, origin: Origin) -> Iterable[tuple[int, list[Tensor]]]:
    """Masked weights from the server, one step after the other, or from the pool if they came before."""
    kept = origin.masked_weights() if isinstance(origin, LotPool) else None
    server.send_message({"offsets": kept is None})
    if kept is not None:
        return parse_masked_weights(kept, steps).items()
    if not isinstance(origin, LotPool):
        return receive_masked_weights(server, steps)
    received = dict(receive_masked_weights(server, steps))
    origin.keep_masked_weights(dump_masked_weights(received))
    return received.items()


def begin(session: bytes, steps: Schedule, channel: Channel) -> None:
    """From now on a channel carries frames of one session."""
    channel.session, channel.names = session, steps.name


def offer(program: Program, number_format: NumberFormat) -> dict[str, Any]:
    """What all parties must have in common, as a message."""
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
