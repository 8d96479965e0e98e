"""Pools that both parties make in threads of this process, and their use."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare.private.engines.gateshare.client import ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.making import ServerMaking, make_pool
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.preprocessing.pool import MADE, LotPool, pools_in
from deepshare.private.engines.gateshare.preprocessing.unfinished import Unfinished
from deepshare.private.engines.gateshare.protocols.local import real_logits
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.transport.channel import Channel, RefusalError
from tests.private.engines.gateshare.killed_processes import SIZE, small_program

Change = Callable[[str], None]


def both(
    tmp_path: Path,
    images: int = 3,
    stop: Change = lambda party: None,
    on_progress: Callable[[float, str], None] = lambda share, layer: None,
) -> list[BaseException | None]:
    """Both parties in threads; `stop` is called before each unit is saved, and may raise."""
    left, right = socket.socketpair()
    program, errors = small_program(), [None, None]

    class Stopped(Unfinished):
        def save(self, tag: bytes, arrays: together.Arrays) -> None:
            stop(threading.current_thread().name)
            super().save(tag, arrays)

    def run(place: int, connection: socket.socket) -> None:
        channel = Channel(connection, ("client", "server")[place])
        try:
            with torch.no_grad():
                if place == 0:
                    making = ServerMaking(program, tmp_path / "server", "client", channel, left=100)
                    while not (request := channel.receive_message()).get("end"):
                        making.answer(request)
                else:
                    make_pool(program.outline(), tmp_path / "client", channel, images, on_progress)
        except BaseException as error:
            errors[place] = error  # type: ignore[call-overload]
        finally:
            channel.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepshare.private.engines.gateshare.making.Unfinished", Stopped)
        threads = [
            threading.Thread(target=run, args=(place, end), name=("server", "client")[place])
            for place, end in enumerate((left, right))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    return list(errors)


def server_pool(tmp_path: Path) -> Path:
    ((path, _),) = pools_in(tmp_path / "server", "server", MADE)
    return path


def check_lots(tmp_path: Path, images: int = 3) -> None:
    """Every lot of both pools gives the logits of the clear."""
    program = small_program()
    ours = LotPool(tmp_path / "client", "client", program.outline())
    theirs = LotPool(server_pool(tmp_path), "server", program)
    assert (ours.session, ours.number_format, ours.dealt) == (theirs.session, theirs.number_format, False)
    assert ours.names() == theirs.names() and len(ours.names()) == ours.left() == images
    steps = schedule(program, ours.number_format, dealt=False)
    for name in ours.names():
        mine, other = ours.take(name), theirs.take(name)
        infer(steps, mine, other)
    assert ours.left() == theirs.left() == 0
    for pool in (ours, theirs):
        with pytest.raises(RefusalError, match="is spent: correlated randomness may be used once only"):
            pool.take(name)
        pool.close()


def infer(steps: Any, mine: Lot, other: Lot) -> None:
    images = torch.randn(1, *SIZE)
    server, client = ServerParty(steps, b""), ClientParty(steps, {})
    assert list(server.masked_weights()) == []
    material = client.preprocess(mine, fresh_seed())
    ready = server.preprocess([(other, range(1))], material.openings)
    left, right = (Channel(one, "other") for one in socket.socketpair())
    meters = [LayerMeter([one], "client_bytes", len(steps.program.operations)) for one in (left, right)]
    thread = threading.Thread(target=lambda: server.infer(ready, left, meters[0]))
    thread.start()
    logits = real_logits(client.infer(images, material, right, meters[1]), steps.steps[steps.output].scale)
    thread.join()
    assert float((logits - steps.program.evaluate(images)).abs().max()) < 0.05
