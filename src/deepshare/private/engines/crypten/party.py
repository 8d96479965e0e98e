"""What each process does, from connecting to the end."""

import os
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from deepshare.private.engines.crypten.comparison import Comparator, import_crypten
from deepshare.private.engines.crypten.context import Room
from deepshare.private.engines.crypten.fixed import BITS, LIMIT, decode
from deepshare.private.engines.crypten.gated import Gated
from deepshare.private.engines.crypten.linear import Product
from deepshare.private.engines.crypten.link import Link
from deepshare.private.engines.crypten.options import provider
from deepshare.private.engines.crypten.pooling import Largest
from deepshare.private.engines.crypten.shared import Shared
from deepshare.private.engines.crypten.step import Alone, Step
from deepshare.private.engines.crypten.triples import Dealer, FirstParty, Seeded, Served, Source
from deepshare.private.ir.program import (
    Convolution,
    GatedActivation,
    Linear,
    MaxPool,
    Operation,
    SharedActivation,
)
from deepshare.private.ir.range_checks import check_images_below
from deepshare.private.runtime.engine import Outcome, Part, Task

_STEPS: dict[type[Operation], type[Step]] = {
    Convolution: Product,
    Linear: Product,
    MaxPool: Largest,
    SharedActivation: Shared,
    GatedActivation: Gated,
}


def run(task: Task, ready: Callable[[], None]) -> Outcome:
    """Do one party's part; see `deepshare.private.runtime.engine.Engine.run`."""
    if task.images is not None:
        check_images_below(task.images, LIMIT)
    import_crypten()
    link = Link(task.role, task.addresses)
    ready()
    with torch.no_grad():
        outcome = _deal(task, link) if task.role == "dealer" else Party(task, link).run()
    link.part()
    return outcome


def _deal(task: Task, link: Link) -> Outcome:
    seeds = _seed(), _seed()
    link.send(torch.tensor([seeds[0]]), "server")
    link.send(torch.tensor([seeds[1]]), "client")
    room = Room(Dealer(*seeds, link), link, task.count, None)
    steps = _steps(task, room)
    for finished in task.program.finished():
        steps.popleft().deal()
        room.forget(finished)
    # The time is in the server's, who waits for it.
    return Outcome(None, {}, Part(dealer_bytes=room.source.dealt))


class Party:
    """The server or the client."""

    def __init__(self, task: Task, link: Link) -> None:
        self._task, self._link = task, link
        self._clock = time.perf_counter()
        self._comparator = Comparator(link)
        self._room = Room(_source(task, link), link, task.count, self._comparator)
        self._steps = _steps(task, self._room)
        self._room.open_secrets()
        self._session = self._measured()

    def run(self) -> Outcome:
        """One operation after the other: prepare it, meet, run it."""
        values: dict[int, Tensor] = {}
        layers, offline, logits = {}, Part(), None
        for number, finished in enumerate(self._task.program.finished()):
            step = self._steps.popleft()
            step.deal()
            step.settle()
            self._link.meet()
            offline += self._measured()
            inputs = [values[source] for source in step.inputs]
            values[number] = step.run(inputs) if inputs else self._images()
            if not self._steps:
                logits = self._reveal(values[number])
            layers[number] = self._measured()
            self._room.forget(finished)
            for source in finished:
                del values[source]
        offline += Part(dealer_bytes=self._room.source.dealt)
        return Outcome(logits, layers, offline, self._session, sum(part.seconds for part in layers.values()))

    def _images(self) -> Tensor:
        images = self._task.images
        if images is None:
            images = torch.empty(self._task.count, *self._task.program.input_size, device="meta")
        return self._room.shared(images, BITS, owner=1)

    def _reveal(self, share: Tensor) -> Tensor | None:
        """Show the logits to the client alone."""
        self._link.rounds += 1
        if self._task.role == "server":
            self._link.send(share, "client")
            return None
        return decode(share + self._link.receive(share.shape, "server"))

    def _measured(self) -> Part:
        """What happened since it was last asked."""
        now, link, room = time.perf_counter(), self._link, self._room
        whose = {"server": "server_bytes", "client": "client_bytes"}[self._task.role]
        part = Part(
            now - self._clock,
            rounds=link.rounds,
            comparisons=self._comparator.comparisons,
            products=room.products,
            **{whose: link.sent},
        )
        self._clock = now
        link.sent = link.rounds = self._comparator.comparisons = room.products = 0
        return part


def _steps(task: Task, room: Room) -> deque[Step]:
    """A step for each operation; they are thrown away when they are done, with what was dealt for them."""
    program = task.program
    return deque(
        _STEPS.get(type(operation), Alone)(room, program, number) for number, operation in enumerate(program.operations)
    )


def _source(task: Task, link: Link) -> Source:
    if provider(task.options) == "ttp":
        seed = int(link.receive((1,), "dealer"))
        return Served(seed, link) if task.role == "server" else Seeded(seed)
    if task.role == "client":
        return Seeded(int(link.receive((1,), "server")))
    seed = _seed()
    link.send(torch.tensor([seed]), "client")
    return FirstParty(_seed(), seed)


def _seed() -> int:
    return int.from_bytes(os.urandom(8), "big", signed=True)
