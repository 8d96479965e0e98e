"""Lots under way: the dealer sends each piece as soon as it is dealt, and a party works with those that have arrived.

Frames and their order are those of `send_lot` and `receive_lot`. Both ends have a thread for a channel, which nothing
else may use meanwhile: so the dealer deals on while a party is busy, and a party computes while the dealer deals.
"""

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from queue import SimpleQueue

from deepshare.private.engines.gateshare.crypto.dcf import Bytes
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot, Piece
from deepshare.private.engines.gateshare.protocols.schedule import LOT_START, Schedule
from deepshare.private.transport.channel import Channel


class LotSender:
    """Sends a party its halves of lots, piece by piece.

    Args:
        channel: The connection to the party.
        schedule: Of the lots.
        party: The party.
    """

    def __init__(self, channel: Channel, schedule: Schedule, party: Holder) -> None:
        self._channel, self._schedule, self._party = channel, schedule, party
        self._waiting: SimpleQueue[tuple[int, tuple[Bytes | bytes, ...], Future[None]]] = SimpleQueue()
        self._sent: list[Future[None]] = []
        threading.Thread(target=self._run, name=f"dealer to the {party}", daemon=True).start()

    def begin(self, lot: Lot) -> None:
        """Send the id and the seed of a lot."""
        self._put(LOT_START, lot.id, lot.seed)

    def step(self, number: int, lot: Lot) -> None:
        """Send what was dealt for a step."""
        for name in self._schedule.steps[number].dealt_bytes(lot.images, self._party):
            self._put(number, lot.pieces[number, name])

    def finish(self) -> None:
        """Wait until all is sent.

        Raises:
            EngineError, ConnectionError: It could not be.
        """
        for future in self._sent:
            future.result()
        self._sent.clear()

    def _put(self, number: int, *parts: Bytes | bytes) -> None:
        self._sent.append(Future())
        self._waiting.put((number, parts, self._sent[-1]))

    def _run(self) -> None:
        while True:
            number, parts, future = self._waiting.get()
            try:
                self._channel.send(number, *parts)
            except BaseException as error:
                future.set_exception(error)
                return
            future.set_result(None)


class ArrivingPieces(MutableMapping[Piece, Bytes]):
    """The pieces of a lot, each of which is waited for when it is read.

    Args:
        channel: The connection to the dealer.
        sizes: Bytes of every piece, in the order of the frames.
    """

    def __init__(self, channel: Channel, sizes: Mapping[Piece, int]) -> None:
        self._futures: dict[Piece, Future[Bytes]] = {piece: Future() for piece in sizes}
        awaited = [(piece, size, self._futures[piece]) for piece, size in sizes.items()]
        threading.Thread(target=_receive, args=(channel, awaited), name="lot", daemon=True).start()

    def wait(self) -> None:
        """Wait until all have arrived."""
        for future in self._futures.values():
            future.result()

    def __getitem__(self, piece: Piece) -> Bytes:
        return self._futures[piece].result()

    def __setitem__(self, piece: Piece, data: Bytes) -> None:
        self._futures[piece] = Future()
        self._futures[piece].set_result(data)

    def __delitem__(self, piece: Piece) -> None:
        del self._futures[piece]

    def __contains__(self, piece: object) -> bool:
        return piece in self._futures

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)


def _receive(channel: Channel, awaited: list[tuple[Piece, int, Future[Bytes]]]) -> None:
    try:
        for piece, size, future in awaited:
            future.set_result(channel.receive(piece[0], size))
    except BaseException as error:
        for _, _, future in awaited:
            if not future.done():
                future.set_exception(error)


def receive_arriving(channel: Channel, schedule: Schedule, images: int, party: Holder) -> tuple[Lot, ArrivingPieces]:
    """Receive one's half of a lot: its id and seed now, its pieces as they come; nothing else may use the channel."""
    start = channel.receive(LOT_START, ID_BYTES + SEED_BYTES).tobytes()
    pieces = ArrivingPieces(channel, schedule.dealt_bytes(images, party))
    return Lot(start[:ID_BYTES], start[ID_BYTES:], images, pieces), pieces
