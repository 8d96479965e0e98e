"""Steps on their own: dealt for, preprocessed and run by both parties over a socket, without a network around them."""

import socket
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot, LotBatch
from deepshare.private.engines.gateshare.protocols.step import (
    ClientOffline,
    ClientOnline,
    Dealing,
    InTheClear,
    ProtocolStep,
    ServerOffline,
    ServerOnline,
)
from deepshare.private.transport.channel import Channel

Values = dict[int, Tensor]


def random_shares(x: Tensor) -> tuple[Tensor, Tensor]:
    """The server's and the client's share of ring elements."""
    x_C = torch.randint(-(2**63), 2**63 - 1, x.shape)
    return x - x_C, x_C


def run_steps(steps: Sequence[ProtocolStep], x: Tensor) -> Values:
    """Results of steps, numbered from 1, of which the first read x as step 0; both shares together."""
    images, seed = len(x), fresh_seed()
    mine: Values = {}
    theirs: Values = {}
    mine[0], theirs[0] = random_shares(x)
    server, client, own = (Lot(bytes(ID_BYTES), fresh_seed(), images) for _ in range(3))
    dealing = Dealing(
        session={step.number: step.dealer_session(seed) for step in steps}, own=own, server=server, client=client
    )
    for step in steps:
        step.deal(dealing)
        for party, lot in (("server", server), ("client", client)):
            sizes = step.dealt_bytes(images, party)  # type: ignore[arg-type]
            assert sizes == {name: len(data) for (number, name), data in lot.pieces.items() if number == step.number}
    sessions = {step.number: step.server_session(seed) for step in steps}
    for step in steps:
        assert [tuple(one.shape) for one in sessions[step.number][1]] == step.masked_weight_shapes()
    offline = ClientOffline(
        session={step.number: step.client_session(sessions[step.number][1]) for step in steps},
        lot=LotBatch([(client, range(images))]),
        seed=fresh_seed(),
    )
    for step in steps:
        theirs[step.number] = step.client_offline([theirs[source] for source in step.inputs], offline)
    before = ServerOffline(
        session={number: held for number, (held, _) in sessions.items()},
        lot=LotBatch([(server, range(images))]),
        openings=offline.openings,
    )
    for step in steps:
        step.server_offline(before)
    left, right = socket.socketpair()
    channels = Channel(left, "client"), Channel(right, "server")
    at_server = ServerOnline(images=images, session=before.session, held=before.held, client=channels[0])
    at_client = ClientOnline(images=x, held=offline.held, server=channels[1], waited=lambda: None)

    def serve() -> None:
        for step in steps:
            mine[step.number] = step.server_online([mine[source] for source in step.inputs], at_server)

    thread = threading.Thread(target=serve)
    thread.start()
    for step in steps:
        if step.interactive:
            step.client_online(at_client)
    thread.join()
    cost = [step.online_cost(images) for step in steps]
    sent = sum(part.server_bytes for part in cost), sum(part.client_bytes for part in cost)
    assert (channels[0].sent, channels[1].sent) == sent
    for channel in channels:
        channel.close()
    return {number: value + theirs[number] for number, value in mine.items()}


def clear_steps(steps: Sequence[ProtocolStep], x: Tensor) -> Values:
    """The same without shares."""
    at, values = InTheClear(images=x, shares=None), {0: x}
    for step in steps:
        values[step.number] = step.in_the_clear([values[source] for source in step.inputs], at)
    return values
