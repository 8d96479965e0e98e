"""Lots that the two parties make together, without a dealer: transfers for gates, encryption for linear layers.

The work is done in *units*, one after the other: the transfers of a step, or its products under encryption. After each
the parties agree on a tag for it, so that work that was interrupted goes on after the last unit that both have.
"""

import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import lattice
from deepshare.private.engines.gateshare.crypto.hinted import (
    HintedClient,
    HintedEnd,
    HintedServer,
    check_weights,
    hinted_work,
)
from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted
from deepshare.private.engines.gateshare.crypto.ring import derive, fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot, LotBatch
from deepshare.private.engines.gateshare.preprocessing.dealer import LotStock
from deepshare.private.engines.gateshare.protocols.affine import AffineScalars
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import EncryptedProduct, Making, ProtocolStep
from deepshare.private.engines.gateshare.protocols.transfers import Transfers
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex

_START = 0
_TAG, _TAGS = "unit", "units"
TAG_BYTES = 16
# What takes as long as a product of polynomials: bytes of transfers. And the products that encryption of two numbers
# takes as long as, with few of them.
_BYTES, _ENCRYPTED = 1250.0, 1000.0
MOST_UNITS = 1 << 14

Arrays = dict[str, NDArray[np.uint8]]
"""What a unit has made: pieces of lots by name, or a share of a product."""


class UnitStore(Protocol):
    """Units that are done, on this party's disk."""

    def tags(self) -> list[bytes]:
        """Tags of all, in order."""

    def cut(self, count: int) -> None:
        """Forget all but the first."""

    def read(self, number: int) -> Arrays:
        """Read the results of a unit."""

    def save(self, tag: bytes, arrays: Arrays) -> None:
        """Add a unit."""


class NoStore:
    """Units that nobody keeps."""

    def tags(self) -> list[bytes]:
        """None."""
        return []

    def cut(self, count: int) -> None:
        """Nothing to forget."""

    def read(self, number: int) -> Arrays:
        """Nothing to read."""
        raise AssertionError(number)

    def save(self, tag: bytes, arrays: Arrays) -> None:
        """Forget it."""


def new_lots(batch: bytes, seeds: list[bytes]) -> LotBatch:
    """Empty lots for one image each, whose ids follow from that of the batch."""
    lots = [Lot(derive(batch, "lot", place)[:ID_BYTES], seed, 1) for place, seed in enumerate(seeds)]
    return LotBatch([(lot, range(1)) for lot in lots])


class LotMaker:
    """One party's part of making lots with the other.

    Args:
        schedule: With its weights for the server, of an outline for the client.
        party: This party.
        duplex: Messages to the other.
        transfers: Oblivious transfers with the other.
        scalars: Alpha and beta.
        hinted: Products with the weights, under encryption.
        encrypted: Products of two numbers, under encryption; None where there are none.
    """

    def __init__(
        self,
        schedule: Schedule,
        party: Holder,
        duplex: Duplex,
        transfers: Transfers,
        scalars: AffineScalars,
        hinted: HintedEnd,
        encrypted: Encrypted | None,
    ) -> None:
        self._schedule, self._party, self._duplex = schedule, party, duplex
        self._transfers, self._scalars, self._hinted, self._encrypted = transfers, scalars, hinted, encrypted

    @classmethod
    def begin(cls, schedule: Schedule, party: Holder, channel: Channel) -> Self:
        """Do what serves all lots: base transfers, trees of alpha and beta, hints and keys for encryption.

        Raises:
            EngineError: A library is missing or computes wrongly, or the other party sent something else.
        """
        lattice.check_exact()
        with Duplex(channel, _START) as duplex:
            transfers = Transfers.begin(duplex, _START, party)
            scalars = AffineScalars.begin(transfers, schedule.affine_layers())
            encrypted = Encrypted.begin(duplex, party) if schedule.encrypted(1) else None
            hinted = _begin_hinted(schedule, party, duplex, transfers)
            return cls(schedule, party, duplex, transfers, scalars, hinted, encrypted)

    def make(
        self, lots: LotBatch, store: UnitStore | None = None, on_progress: Callable[[float, str], None] | None = None
    ) -> None:
        """Fill this party's halves of lots.

        Args:
            lots: Empty ones; the other party fills those of the same ids.
            store: Keeps units that are done, and may have some from before.
            on_progress: Called with the share of the work that is done, and the layer: before the first unit that is
                made here, and after each.

        Raises:
            EngineError: The other party sent something else, or has units of other lots.
            ConnectionError: It is gone.
        """
        store = store or NoStore()
        with self._duplex:
            at = Making(
                party=self._party,
                steps=self._schedule.steps,
                lot=lots,
                transfers=self._transfers,
                scalars=self._scalars,
                hinted=self._hinted,
                encrypted=self._encrypted,
            )
            both = self._agree(store)
            store.cut(both)
            self._hinted.start(lots.images)
            weights = unit_weights(self._schedule, lots.images)
            shares = [done / (sum(weights) or 1.0) for done in accumulate(weights, initial=0.0)]
            for number, (layer, run, load) in enumerate(_units(self._schedule, at)):
                if number < both:
                    load(store.read(number))
                else:
                    if on_progress is not None and number == both:
                        on_progress(shares[number], layer)
                    tag = self._agree_on_tag()
                    arrays = run()
                    load(arrays)
                    store.save(tag, arrays)
                if on_progress is not None and (number >= both or number + 1 == len(weights)):
                    on_progress(shares[number + 1], layer)

    def _agree(self, store: UnitStore) -> int:
        """Agree on the number of units that both have."""
        mine = store.tags()
        self._duplex.put(_TAGS, b"".join(mine))
        said = self._duplex.get(_TAGS)
        if len(said) % TAG_BYTES or len(said) > MOST_UNITS * TAG_BYTES:
            raise EngineError("the other party has units without a tag: start both parties again")
        theirs = [said[begin : begin + TAG_BYTES] for begin in range(0, len(said), TAG_BYTES)]
        pairs = zip(mine, theirs, strict=False)
        return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(mine), len(theirs)))

    def _agree_on_tag(self) -> bytes:
        if self._party == "server":
            tag = os.urandom(TAG_BYTES)
            self._duplex.put(_TAG, tag)
            return tag
        if len(tag := self._duplex.get(_TAG)) != TAG_BYTES:
            raise EngineError(f"the server's unit has a tag of {len(tag)} bytes: start both parties again")
        return tag


Unit = tuple[str, Callable[[], Arrays], Callable[[Arrays], None]]
"""The layer, how to make it, and how to use what was made."""


def _units(schedule: Schedule, at: Making) -> Iterator[Unit]:
    """All units in order."""
    for step in schedule.steps:
        if step.has_transfers:
            yield schedule.name(step.number), _transfers(step, at), _into_lots(at.lot)
    for step in schedule.steps:
        if step.hinted_layers():
            yield schedule.name(step.number), *_weighted(step, at)
    for step, product in schedule.encrypted(at.lot.images):
        yield schedule.name(step.number), *_multiplied(product, at)


def _begin_hinted(schedule: Schedule, party: Holder, duplex: Duplex, transfers: Transfers) -> HintedEnd:
    layers = schedule.hinted_layers()
    # Both parties have a part in each session of transfers.
    session = b"".join(sorted([transfers.sender.session, transfers.receiver.session]))
    if party == "client":
        return HintedClient(duplex, _START, derive(session, "hints"), layers)
    weights = [step.hinted_weights() for step in schedule.steps]
    for added in weights:
        check_weights(added)
    pairs = zip(layers, (weight for added in weights for weight in added), strict=True)
    return HintedServer(duplex, _START, derive(session, "hints"), list(pairs))


def load_units(schedule: Schedule, party: Holder, lots: LotBatch, store: UnitStore) -> None:
    """Fill lots from units that are all done, without the other party.

    Raises:
        EngineError: Some are not.
    """
    nobody: Any = None
    at = Making(
        party=party,
        steps=schedule.steps,
        lot=lots,
        transfers=nobody,
        scalars=nobody,
        hinted=nobody,
        encrypted=None,
    )
    if len(store.tags()) != len(unit_weights(schedule, lots.images)):
        raise EngineError("not all units of these lots are done: prepare with another --pool")
    for number, (_, _, load) in enumerate(_units(schedule, at)):
        load(store.read(number))


def _weighted(step: ProtocolStep, at: Making) -> tuple[Callable[[], Arrays], Callable[[Arrays], None]]:
    def load(arrays: Arrays) -> None:
        step.keep_product(at, torch.from_numpy(arrays["share"].view(np.int64)).view(-1, *step.shape))

    return lambda: _bytes(step.multiply(at)), load


def _multiplied(product: EncryptedProduct, at: Making) -> tuple[Callable[[], Arrays], Callable[[Arrays], None]]:
    def run() -> Arrays:
        if at.encrypted is None:
            raise AssertionError("nothing was begun")
        return _bytes(at.encrypted.products(product.factor(at)))

    return run, lambda arrays: product.keep(at, torch.from_numpy(arrays["share"].view(np.int64)))


def _bytes(share: torch.Tensor) -> Arrays:
    return {"share": share.contiguous().numpy().reshape(-1).view(np.uint8)}


def _transfers(step: ProtocolStep, at: Making) -> Callable[[], Arrays]:
    def run() -> Arrays:
        before = [set(lot.pieces) for lot, _ in at.lot.parts]
        step.transfer(at)
        return {
            f"{place} {piece[0]} {piece[1]}": data
            for place, (lot, _) in enumerate(at.lot.parts)
            for piece, data in lot.pieces.items()
            if piece not in before[place]
        }

    return run


def _into_lots(lots: LotBatch) -> Callable[[Arrays], None]:
    def load(arrays: Arrays) -> None:
        for label, data in arrays.items():
            place, number, name = label.split(" ")
            lots.parts[int(place)][0].pieces[int(number), name] = data

    return load


def unit_weights(schedule: Schedule, images: int) -> list[float]:
    """About how much work each unit is, from sizes alone: products of polynomials that take as long, as measured."""
    transfers = {step.number: 0.0 for step in schedule.steps if step.has_transfers}
    for step in schedule.steps:
        if step.transfers_with is not None:
            transfers[step.transfers_with] += step.transfer_cost(images).bytes / _BYTES
    weights = [*transfers.values()]
    weights += [hinted_work(layers, images) for step in schedule.steps if (layers := step.hinted_layers())]
    return weights + [_ENCRYPTED * (1 + product.count / 4096) for _, product in schedule.encrypted(images)]


def done_share(schedule: Schedule, lots: LotBatch, store: UnitStore) -> float:
    """The share of the work that this party has done before."""
    weights = unit_weights(schedule, lots.images)
    return sum(weights[: len(store.tags())]) / (sum(weights) or 1.0)


class ClientLotsTogether:
    """The client asks the server to make lots with it; see `ClientLots`."""

    def __init__(self, maker: LotMaker, server: Channel) -> None:
        self._maker, self._server, self._stock = maker, server, LotStock()

    def check(self, images: int) -> None:
        """As many are made as are asked for."""

    def get(self, images: int) -> list[Lot]:
        """A lot for each."""
        self._server.send_message({"deal": images})
        return [self._stock.take(name) for name in _made(self._maker, self._server, images, "client", self._stock)]

    def discard(self, name: bytes) -> None:
        """It is spent, and nobody counts."""

    def dealt_bytes(self, lot: Lot) -> int:
        """Nobody dealt it."""
        return 0


class ServerLotsTogether(LotStock):
    """The server's halves; see `ServerLots`."""

    def __init__(self, maker: LotMaker, client: Channel) -> None:
        super().__init__()
        self._maker, self._client = maker, client

    def expect(self, images: int) -> None:
        """Make lots with the client."""
        _made(self._maker, self._client, images, "server", self)

    def dealt_bytes(self, lot: Lot) -> int:
        """Nobody dealt it."""
        return 0


def _made(maker: LotMaker, channel: Channel, images: int, party: Holder, stock: LotStock) -> list[bytes]:
    """Make lots for some images into a stock; returns their ids."""
    if party == "server":
        channel.send(_START, batch := os.urandom(ID_BYTES))
    else:
        batch = channel.receive(_START, ID_BYTES).tobytes()
    lots = new_lots(batch, [fresh_seed() for _ in range(images)])
    maker.make(lots)
    for lot, _ in lots.parts:
        stock.add(lot)
    return [lot.id for lot, _ in lots.parts]
