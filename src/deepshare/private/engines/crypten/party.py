"""One process of the engine, from connecting to the end."""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from deepshare.private.engines.crypten.comparison import Comparator, import_crypten
from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.fixed import BITS, LIMIT, decode
from deepshare.private.engines.crypten.link import GlooLink
from deepshare.private.engines.crypten.registry import implement
from deepshare.private.engines.crypten.triples import (
    CorrectedShares,
    SeededShares,
    TripleProvider,
    TrustedFirstParty,
    TrustedThirdParty,
)
from deepshare.private.runtime.engine import Task, check_images_below
from deepshare.private.runtime.outcome import Outcome, Part


def run(task: Task, provider: str, ready: Callable[[], None]) -> Outcome:
    """Do one party's part; see `deepshare.private.runtime.engine.Engine.run`.

    Args:
        task: The task.
        provider: The dealer of random numbers, tfp or ttp.
        ready: Called once the parties are connected.
    """
    if task.images is not None:
        check_images_below(task.images, LIMIT)
    import_crypten()
    link = GlooLink(task.role, task.addresses)
    ready()
    with torch.no_grad():
        outcome = _deal(task, link) if task.role == "dealer" else ComputingParty(task, provider, link).run()
    link.part()
    return outcome


def _deal(task: Task, link: GlooLink) -> Outcome:
    seeds = _seed(), _seed()
    link.send(torch.tensor([seeds[0]]), "server")
    link.send(torch.tensor([seeds[1]]), "client")
    context = Context(TrustedThirdParty(*seeds, link), link, task.count, None)
    operations = implement(task.program, context)
    for finished in task.program.finished():
        operations.popleft().deal()
        context.forget(finished)
    # The time is in the server's, who waits for it.
    return Outcome(None, {}, Part(dealer_bytes=context.triples.dealt))


class ComputingParty:
    """The server or the client."""

    def __init__(self, task: Task, provider: str, link: GlooLink) -> None:
        self._task, self._link = task, link
        self._clock = time.perf_counter()
        self._comparator = Comparator(link)
        self._context = Context(_triples(task, provider, link), link, task.count, self._comparator)
        self._operations = implement(task.program, self._context)
        self._context.open_secrets()
        self._session = self._measured()

    def run(self) -> Outcome:
        """One operation after the other: preprocessing, a meeting, and the operation itself."""
        values: dict[int, Tensor] = {}
        layers, offline, logits = {}, Part(), None
        for number, finished in enumerate(self._task.program.finished()):
            operation = self._operations.popleft()
            operation.deal()
            operation.precompute()
            self._link.meet()
            offline += self._measured()
            inputs = [values[source] for source in operation.operation.inputs]
            values[number] = operation.run(inputs) if inputs else self._images()
            if not self._operations:
                logits = self._reveal(values[number])
            layers[number] = self._measured()
            self._context.forget(finished)
            for source in finished:
                del values[source]
        offline += Part(dealer_bytes=self._context.triples.dealt)
        return Outcome(logits, layers, offline, self._session, sum(part.seconds for part in layers.values()))

    def _images(self) -> Tensor:
        images = self._task.images
        if images is None:
            images = torch.empty(self._task.count, *self._task.program.input_size, device="meta")
        return self._context.shared(images, BITS, owner=1)

    def _reveal(self, share: Tensor) -> Tensor | None:
        """Reveal the logits to the client alone."""
        self._link.rounds += 1
        if self._task.role == "server":
            self._link.send(share, "client")
            return None
        return decode(share + self._link.receive(share.shape, "server"))

    def _measured(self) -> Part:
        """Everything since the last call."""
        now, link, context = time.perf_counter(), self._link, self._context
        whose = {"server": "server_bytes", "client": "client_bytes"}[self._task.role]
        part = Part(
            now - self._clock,
            rounds=link.rounds,
            comparisons=self._comparator.comparisons,
            products=context.products,
            **{whose: link.sent},
        )
        self._clock = now
        link.sent = link.rounds = self._comparator.comparisons = context.products = 0
        return part


def _triples(task: Task, provider: str, link: GlooLink) -> TripleProvider:
    if provider == "ttp":
        seed = int(link.receive((1,), "dealer"))
        return CorrectedShares(seed, link) if task.role == "server" else SeededShares(seed)
    if task.role == "client":
        return SeededShares(int(link.receive((1,), "server")))
    seed = _seed()
    link.send(torch.tensor([seed]), "client")
    return TrustedFirstParty(_seed(), seed)


def _seed() -> int:
    return int.from_bytes(os.urandom(8), "big", signed=True)
