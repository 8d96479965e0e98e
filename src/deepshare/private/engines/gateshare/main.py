"""What each of the processes does, from connecting to the end."""

from collections.abc import Callable
from contextlib import ExitStack, closing

import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.asking import Asking
from deepshare.private.engines.gateshare.basis import (
    Origin,
    agreed,
    begin,
    client_source,
    offsets_from,
    server_basis,
    session_of,
)
from deepshare.private.engines.gateshare.client import Client
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import inferences
from deepshare.private.engines.gateshare.metering import Meter
from deepshare.private.engines.gateshare.preprocessing.dealer import Dealer
from deepshare.private.engines.gateshare.preprocessing.lot import Party
from deepshare.private.engines.gateshare.preprocessing.pool import Pool
from deepshare.private.engines.gateshare.server import Server
from deepshare.private.engines.gateshare.serving import serve
from deepshare.private.engines.gateshare.support import has_pool
from deepshare.private.engines.gateshare.transport import frames
from deepshare.private.engines.gateshare.transport.channel import Channel, accept, connect, listen
from deepshare.private.runtime.engine import Outcome, Task


def run(task: Task, ready: Callable[[], None]) -> Outcome:
    """Do one party's part; see `deepshare.private.runtime.engine.Engine.run`."""
    parts = {"server": _serve, "client": _ask, "dealer": _deal}
    with torch.no_grad(), ExitStack() as stack:
        return parts[task.role](task, ready, stack)


def _serve(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    listener = stack.enter_context(listen(task.addresses["server"]))
    origin = _origin(task, stack, "server")
    client = stack.enter_context(closing(accept(listener, "client", task.tls)))
    ready()
    basis = server_basis(origin, task.program)
    server = Server(basis.steps, basis.seed)
    return serve(task.count, client, basis, server, server.prepare())


def _ask(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    if task.images is None:
        raise AssertionError("a client has images")
    origin = _origin(task, stack, "client")
    server = stack.enter_context(
        closing(connect(task.addresses["server"], "server", task.tls, task.extras.get("token", b"")))
    )
    ready()
    meter = Meter([server], "client_bytes")
    offer = server.hear()
    numbers, session = agreed(offer, task.program), session_of(offer)
    numbers.check(task.images)
    steps = schedule(task.program, numbers)
    begin(session, steps, server)
    source = client_source(origin, numbers, session, steps, server)
    source.check(task.count)
    asking = Asking(Client(steps, offsets_from(server, steps, origin)), server, source, meter)
    for images in task.images.split(max(inferences(task.program, task.count))):
        asking.ask(images)
    if isinstance(origin, Channel):
        origin.tell({"end": True})
    return asking.outcome()


def _origin(task: Task, stack: ExitStack, party: Party) -> Origin:
    """Where lots come from: the party's pool, or a connection to the dealer."""
    if (pool := task.extras.get("pool")) is not None:
        return Pool(pool, party, task.program)
    if has_pool(task.options):
        raise EngineError("the server uses what was dealt beforehand: give your pool of the same dealing with --pool")
    dealer = stack.enter_context(closing(connect(task.addresses["dealer"], "dealer", task.tls)))
    dealer.tell({"role": party})
    return dealer


def _deal(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    server, client = _parties(task, stack)
    ready()
    meter = Meter([server, client], "dealer_bytes")
    steps = schedule(task.program, agreed(server.hear(), task.program))
    dealer = Dealer(steps)
    for channel in (server, client):
        channel.tell({"session": dealer.id.hex()})
        begin(dealer.id, steps, channel)
    server.send(0, dealer.seed)
    session, most = meter.part(), max(inferences(task.program, task.count))
    while (images := client.hear().get("deal")) is not None:
        if not isinstance(images, int) or not 1 <= images <= most:
            raise EngineError(f"the client wants a lot of {images} images: it can have 1 to {most}")
        for_server, for_client = dealer.deal(images)
        frames.send_lot(server, steps, for_server, "server")
        frames.send_lot(client, steps, for_client, "client")
    return Outcome(None, {}, meter.part(), session)


def _parties(task: Task, stack: ExitStack) -> tuple[Channel, Channel]:
    listener = stack.enter_context(listen(task.addresses["dealer"]))
    found = {}
    for _ in range(2):
        channel = stack.enter_context(closing(accept(listener, "party", task.tls)))
        channel.peer = str(channel.hear().get("role"))
        found[channel.peer] = channel
    if set(found) != {"server", "client"}:
        raise EngineError(f"{' and '.join(found)} came to the dealer: it serves one server and one client")
    return found["server"], found["client"]
