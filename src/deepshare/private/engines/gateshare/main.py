"""Each party's process from connecting to the end.

Session setup comes first: parties agree on the network's outline, the number format, the session, and where lots come
from; then the masked weights go to the client.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.client import ClientLots, ClientParty, ClientSession
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import PartyMeter, inferences
from deepshare.private.engines.gateshare.fixedpoint import (
    COMPARISON_BITS,
    comparison_bits_of,
)
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing.arrival import LotSender
from deepshare.private.engines.gateshare.preprocessing.dealer import (
    ClientLotsFromDealer,
    LotDealer,
)
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.preprocessing.together import (
    ClientLotsTogether,
    LotMaker,
    ServerLotsTogether,
)
from deepshare.private.engines.gateshare.protocols.schedule import (
    Schedule,
    agreed_format,
    begin,
    dump_masked_weights,
    offer,
    parse_masked_weights,
    receive_masked_weights,
    session_id,
)
from deepshare.private.engines.gateshare.server import Origin, ServerParty, ServerSession, SessionSetup, server_setup
from deepshare.private.runtime.engine import Task
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.transport.channel import Channel, accept, connect, listen


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
    offered = server.receive_message()
    number_format, session = agreed_format(offered, task.program), session_id(offered)
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
    batches = pictures.split(together)
    for images, following in zip_longest(batches, batches[1:]):
        ahead = None
        if isinstance(lots, ClientLotsFromDealer) and following is not None:
            ahead = partial(lots.order, len(following))  # dealt while the parties use this one
        asking.ask(images, ahead)
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
    if not steps.masked_weight_shapes():
        server.send_message({"offsets": False})
        return ()
    kept = origin.masked_weights() if isinstance(origin, LotPool) else None
    server.send_message({"offsets": kept is None})
    if kept is not None:
        return parse_masked_weights(kept, steps).items()
    if not isinstance(origin, LotPool):
        return receive_masked_weights(server, steps)
    received = dict(receive_masked_weights(server, steps))
    origin.keep_masked_weights(dump_masked_weights(received))
    return received.items()
