"""What each of the three processes does, from connecting to the end."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import torch

from deepshare.errors import EngineError
from deepshare.private import outline
from deepshare.private.engine import Task
from deepshare.private.gateshare import wire
from deepshare.private.gateshare.asking import Asking
from deepshare.private.gateshare.channel import Channel, accept, connect, listen
from deepshare.private.gateshare.client import Client
from deepshare.private.gateshare.correlations import ID_BYTES
from deepshare.private.gateshare.dealer import Dealer
from deepshare.private.gateshare.meter import Meter
from deepshare.private.gateshare.numbers import Numbers, calibrate
from deepshare.private.gateshare.predict import inferences
from deepshare.private.gateshare.randomness import SEED_BYTES
from deepshare.private.gateshare.schedule import schedule
from deepshare.private.gateshare.server import Server
from deepshare.private.gateshare.serving import Serving
from deepshare.private.gateshare.steps import Schedule
from deepshare.private.gateshare.weights import session_shapes
from deepshare.private.result import Outcome


def run(task: Task, ready: Callable[[], None]) -> Outcome:
    """Do one party's part; see `deepshare.private.engine.Engine.run`."""
    parts = {"server": _serve, "client": _ask, "dealer": _deal}
    with torch.no_grad(), ExitStack() as stack:
        return parts[task.role](task, ready, stack)


def _serve(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    listener = stack.enter_context(listen(task.addresses["server"]))
    dealer = stack.enter_context(closing(connect(task.addresses["dealer"], "dealer", task.tls)))
    dealer.tell({"role": "server"})
    client = stack.enter_context(closing(accept(listener, "client", task.tls)))
    ready()
    meter = Meter([client], "server_bytes")
    numbers = calibrate(task.program)
    steps = schedule(task.program, numbers)
    agreement = {"outline": outline.digest(task.program), "numbers": numbers.dump()}
    dealer.tell(agreement)
    session = _session(dealer.hear())
    client.tell(agreement | {"session": session.hex()})
    _begin(session, steps, dealer, client)
    server = Server(steps, dealer.receive(0, SEED_BYTES).tobytes())
    for number in session_shapes(steps):
        client.send(number, *server.offsets(number))
    serving = Serving(server, client, dealer, meter)
    for images in inferences(task.program, task.count):
        serving.answer(images)
    return serving.outcome()


def _ask(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    if task.images is None:
        raise AssertionError("a client has images")
    dealer = stack.enter_context(closing(connect(task.addresses["dealer"], "dealer", task.tls)))
    dealer.tell({"role": "client"})
    server = stack.enter_context(closing(connect(task.addresses["server"], "server", task.tls)))
    ready()
    meter = Meter([server], "client_bytes")
    agreement = server.hear()
    numbers, session = _agreed(agreement, task), _session(agreement)
    numbers.check(task.images)
    if _session(dealer.hear()) != session:
        raise EngineError("the dealer serves another session: start all parties anew")
    steps = schedule(task.program, numbers)
    _begin(session, steps, dealer, server)
    asking = Asking(Client(steps, wire.receive_offsets(server, steps)), server, dealer, meter)
    for images in task.images.split(max(inferences(task.program, task.count))):
        asking.ask(images)
    dealer.tell({"end": True})
    return asking.outcome()


def _deal(task: Task, ready: Callable[[], None], stack: ExitStack) -> Outcome:
    server, client = _parties(task, stack)
    ready()
    meter = Meter([server, client], "dealer_bytes")
    steps = schedule(task.program, _agreed(server.hear(), task))
    dealer = Dealer(steps)
    for channel in (server, client):
        channel.tell({"session": dealer.id.hex()})
    _begin(dealer.id, steps, server, client)
    server.send(0, dealer.seed)
    session, most = meter.part(), max(inferences(task.program, task.count))
    while (images := client.hear().get("deal")) is not None:
        if not isinstance(images, int) or not 1 <= images <= most:
            raise EngineError(f"the client wants a lot of {images} images: it can have 1 to {most}")
        for_server, for_client = dealer.deal(images)
        wire.send_lot(server, steps, for_server, "server")
        wire.send_lot(client, steps, for_client, "client")
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


def _begin(session: bytes, steps: Schedule, *channels: Channel) -> None:
    for channel in channels:
        channel.session, channel.names = session, steps.name


def _agreed(message: dict[str, Any], task: Task) -> Numbers:
    if message.get("outline") != outline.digest(task.program):
        raise EngineError("the server has another network or plan than was agreed: ask again")
    return Numbers.parse(message.get("numbers"), task.program)


def _session(message: dict[str, Any]) -> bytes:
    try:
        session = bytes.fromhex(message["session"])
    except (KeyError, TypeError, ValueError):
        session = b""
    if len(session) != ID_BYTES:
        raise EngineError("the session has no name: install the same deepshare everywhere")
    return session
