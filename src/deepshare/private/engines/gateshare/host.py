"""The session host: one server for many clients at once, with one set of weights and pools of one or more dealings.

A session computes while it holds a turn, and yields it whenever it waits for its client: a client that is slow or gone
holds up nobody. There are as many turns as keep all cores busy.

A request names fresh lots of the client, all of one owner, before anything is done for it:

    client: {"images", "session", "lots"}       session is the id of the dealing, lots are candidates
    server: {"outline", "numbers", "session", "spent"}, or a refusal
    then, once per connection, the masked weights, and for each request its inferences
"""

import socket
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.cost_model import PartyMeter, inferences, opening_bytes
from deepshare.private.engines.gateshare.crypto.parallel import CORES
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot
from deepshare.private.engines.gateshare.making import read_request
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, DEALT, MADE, LotPool, pools_in
from deepshare.private.engines.gateshare.preprocessing.stock import Level, levels
from deepshare.private.engines.gateshare.protocols.schedule import begin, offer, session_id
from deepshare.private.engines.gateshare.server import ServerParty, ServerSession, SessionSetup, server_setup
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.transport.channel import (
    SILENCE_SECONDS,
    SLOWEST,
    Channel,
    LaterError,
    LeftError,
    RefusalError,
    YieldingChannel,
)

MOST_CANDIDATES = 600
MOST_IMAGES = 10_000
"""Images that a client may ever ask where the parties make lots: every answer tells something about the network."""


class HostedDealing:
    """One dealing of a server: its pool, its masks, and the weights under them.

    Args:
        pool: The pool.
        program: With its weights.
        others: Dealings that are there already; without masks all have the same weights, which are held once.
    """

    def __init__(self, pool: LotPool, program: Program, others: Iterable["HostedDealing"] = ()) -> None:
        self.pool, self.setup = pool, server_setup(pool, program)
        self.masked_weights: list[tuple[int, list[Tensor]]] = []
        same = [] if pool.dealt else [one for one in others if one.pool.number_format == pool.number_format]
        self.server: ServerParty = same[0].server if same else ServerParty(self.setup.schedule, self.setup.seed)
        if not same:
            with torch.no_grad():
                self.masked_weights += self.server.masked_weights()


class OwnedLots:
    """The lots of one owner in a pool; see `ServerLots`. Those of others are as good as spent.

    Args:
        pool: The pool.
        owner: The owner.
        channel: Yields its turn while the disk is at work.
        odd: Told once if lots of others are named.
    """

    def __init__(self, pool: LotPool, owner: str, channel: YieldingChannel, odd: Callable[[str], None]) -> None:
        self._pool, self._owner, self._channel = pool, owner, channel
        self._odd: Callable[[str], None] | None = odd

    def expect(self, images: int) -> None:
        """Refuse: there is no dealer to ask."""
        self._pool.expect(images)

    def is_fresh(self, name: bytes) -> bool:
        """Return True if a lot is there, was never taken, and is the owner's."""
        if not self._pool.is_fresh(name):
            return False
        if (owner := self._pool.owner(name)) != self._owner and self._odd is not None:
            self._odd(f"{self._owner} names lots of {owner}, and gets none of them (pool {self._pool.name})")
            self._odd = None
        return owner == self._owner

    def take_all(self, names: Sequence[bytes]) -> list[Lot]:
        """Take lots out for good, which are fresh."""
        with self._channel.without_turn():  # the disk, or another process, may take its time
            return self._pool.take_all(names)

    def dealt_bytes(self, lot: Lot) -> int:
        """All bytes of a lot."""
        return self._pool.dealt_bytes(lot)


class SessionHost:
    """Hosts sessions of many clients; see `deepshare.private.runtime.preprocessing.Host`.

    Args:
        program: With its weights.
        pools: The server's pools, or folders of pools, in which new ones may appear at any time.
        engine: The engine that pools are for; those that parties make together go to the first folder.

    Raises:
        EngineError: There is no pool, or one that was named is of another network, or of another party.
    """

    def __init__(self, program: Program, pools: Sequence[Path], engine: str = DEALT) -> None:
        self._program, self._folders, self._engine = program, pools, engine
        self._dealings: dict[bytes, HostedDealing] = {}
        self._known: set[Path] = set()
        self._warned: dict[tuple[str, str], float] = {}
        self._refused: dict[Path, str] = {}
        self._unread: dict[Path, str] = {}
        self._told: dict[Path, str] = {}
        if engine == MADE:
            self._check_folder(pools[0])
        self.refresh()
        for why in self._refused.values():
            raise EngineError(why)
        if not self._dealings and engine == DEALT:
            raise EngineError(
                "gateshare serves what was dealt beforehand for this network and this --answer: give such a pool with "
                "--pool"
            )
        self._turns = threading.Semaphore(CORES)
        self._odd: SimpleQueue[str] = SimpleQueue()

    def refresh(self) -> list[str]:
        """Look for pools that were added since, or are gone; those of other networks are for others."""
        said, digest = self._drop_gone(), outline.digest(self._program)
        self._refused = {}
        for folder in self._folders:
            for path, about in self._pools_in(folder):
                if path not in self._known and about.get("outline") == digest:
                    try:
                        self._add(path)
                        said.append(f"pool {path.name} added")
                    except EngineError as error:  # which concerns no other pool
                        self._refused[path] = str(error)
        return said

    @property
    def dealings(self) -> list[str]:
        """Ids of its dealings."""
        return [session.hex() for session in list(self._dealings)]

    def _pools_in(self, folder: Path) -> list[tuple[Path, dict[str, str]]]:
        try:
            return pools_in(folder, "server", self._engine)
        except EngineError:
            if self._engine == MADE:  # none yet
                return []
            raise

    def _check_folder(self, folder: Path) -> None:
        if (folder / ABOUT).exists():
            raise EngineError(f"{folder} is a pool itself: give a folder, in which clients' pools are made")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EngineError(f"{folder} cannot be written ({error.strerror}): give another folder") from error

    def _drop_gone(self) -> list[str]:
        """Forget pools whose folders were deleted."""
        gone = [path for path in sorted(self._known) if not (path / ABOUT).exists()]
        for path in gone:
            self._known.discard(path)
            for session in [one for one, dealing in self._dealings.items() if dealing.pool.folder == path]:
                del self._dealings[session]
        return [f"pool {path.name} is gone" for path in gone]

    def admit_making(self, request: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Check a request to make lots; returns what the process needs that takes part."""
        if self._engine != MADE:
            raise RefusalError("this server's lots are dealt: get a pool from its dealer, and ask with it")
        read_request(request)
        owner = name or "client"
        made = sum(level.dealt + level.stock.unusable for level in self._levels() if level.stock.owner == owner)
        if made >= MOST_IMAGES:
            raise RefusalError(f"{made:,} images of {MOST_IMAGES:,} were made for this client: it gets no more")
        own = {"owner": owner, "named": bool(name), "left": MOST_IMAGES - made}
        return {"pools": self._folders[0], "request": dict(request), **own}

    def levels(self) -> list[tuple[str, str, int, int]]:
        """Levels of all pools."""
        return [(level.pool, level.stock.owner, level.left, level.dealt) for level in self._levels()]

    def warnings(self) -> list[str]:
        """Warnings of pools that have become low, once for each share of `LOW`, or that cannot be used; and odd use."""
        said = []
        with suppress(Empty):
            while True:
                said.append(self._odd.get_nowait())
        for level in self._levels():
            key = level.pool, level.stock.owner
            if level.low < self._warned.get(key, 1.0):
                self._warned[key] = level.low
                said.append(level.warning)
        wrong = self._unread | self._refused
        said += [why for path, why in wrong.items() if self._told.get(path) != why]
        self._told = wrong
        return said

    def _levels(self) -> list[Level]:
        found: list[Level] = []
        unread: dict[Path, str] = {}
        for path in sorted(self._known):
            try:
                found += levels(path)
            except EngineError as error:
                if (path / ABOUT).exists():  # else its folder was deleted just now
                    unread[path] = str(error)
        self._unread = unread
        return found

    def _add(self, folder: Path) -> None:
        pool = LotPool(folder, "server", self._program)
        dealing = HostedDealing(pool, self._program, list(self._dealings.values()))
        self._known.add(folder)
        self._dealings[dealing.setup.session] = dealing

    def channel(self, connection: socket.socket) -> Channel:
        """A channel that takes turns with the others, whichever network its client will ask."""
        return YieldingChannel(connection, "client", self._turns)

    def admit(self, request: Mapping[str, Any], name: str) -> str:
        """Check that a request shows a fresh lot, and that it is the client's; returns its owner."""
        dealing, names = self._named(request)
        fresh = [name for name in names if dealing.pool.is_fresh(name)]
        if not fresh:
            raise RefusalError("all lots that the client named are spent or unknown: it needs a pool of this server")
        owners = {dealing.pool.owner(name) for name in fresh}
        if len(owners) > 1:
            raise RefusalError("the client named lots of several clients")
        owner = owners.pop()
        if dealing.pool.named and name not in ("", owner):
            raise RefusalError("these lots belong to another certificate: ask with your own pool")
        return owner

    def session(self, channel: Channel, request: Mapping[str, Any], owner: str) -> "HostedSession":
        """Begin a client's session."""
        if not isinstance(channel, YieldingChannel):
            raise AssertionError("a channel of another host")
        dealing, _ = self._named(request)
        return HostedSession(self, dealing, OwnedLots(dealing.pool, owner, channel, self._odd.put), channel)

    def _named(self, request: Mapping[str, Any]) -> tuple[HostedDealing, list[bytes]]:
        dealing = self._dealings.get(session_id(dict(request)))
        if dealing is None:
            raise LaterError("this server has no pool of the client's dealing: add it, or ask the server that has")
        return dealing, candidates(request)


class HostedSession:
    """One client's session; see `deepshare.private.runtime.preprocessing.Session`."""

    def __init__(self, host: SessionHost, dealing: HostedDealing, lots: OwnedLots, channel: YieldingChannel) -> None:
        self._host, self._dealing, self._lots, self._channel = host, dealing, lots, channel
        # The channel's own, which may be another host's: the channel yields them while it waits.
        self._turns = channel.turns
        self._serving: ServerSession | None = None

    def answer(self, request: Mapping[str, Any]) -> Generator[None, None, Outcome]:
        """Do the server's part for one request."""
        dealing, names = self._host._named(request)
        if dealing is not self._dealing:
            raise RefusalError("a request of another dealing than the session's: connect anew")
        setup, channel, count = dealing.setup, self._channel, int(request["images"])
        spent = [name.hex() for name in names if not self._lots.is_fresh(name)]
        self._turns.acquire()
        held, asked = True, False
        try:
            self._prepare_thread()
            channel.allow(SILENCE_SECONDS)
            if self._serving is None:
                self._serving = self._set_up(setup, spent)
            else:
                channel.send_message({"spent": spent})
            for images in inferences(setup.schedule.program, count, dealt=setup.schedule.dealt):
                channel.allow(SILENCE_SECONDS + images * 2 * opening_bytes(setup.schedule) / SLOWEST)
                for _ in self._serving.answer(images):
                    asked = True
                    self._turns.release()
                    held = False
                    yield
                    self._turns.acquire()
                    held = True
                    self._prepare_thread()
            return self._serving.outcome()
        except ConnectionError as error:
            if asked:
                raise
            raise LeftError("it left before it sent images") from error
        finally:
            if held:
                self._turns.release()

    def _prepare_thread(self) -> None:
        """Set what each thread of Python has for itself; after a pause it is another one."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)

    def _set_up(self, setup: SessionSetup, spent: list[str]) -> ServerSession:
        channel, meter = self._channel, PartyMeter([self._channel], "server_bytes")
        said = offer(setup.schedule.program, setup.schedule.number_format)
        channel.send_message(said | {"session": setup.session.hex(), "spent": spent})
        begin(setup.session, setup.schedule, channel)
        if channel.receive_message().get("offsets"):
            weights = self._dealing.masked_weights
            channel.allow(SILENCE_SECONDS + sum(one.nbytes for _, masked in weights for one in masked) / SLOWEST)
            for number, masked in weights:
                channel.send(number, *masked)
        return ServerSession(self._dealing.server, channel, self._lots, meter)


def candidates(request: Mapping[str, Any]) -> list[bytes]:
    """The lots that a request names.

    Raises:
        RefusalError: It names none, or too many.
    """
    try:
        names = [bytes.fromhex(name) for name in request["lots"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RefusalError("the client does not say which lots it has") from error
    if not names or len(names) > MOST_CANDIDATES or any(len(name) != ID_BYTES for name in names):
        raise RefusalError("the client does not say which lots it has")
    return names
