"""Pools that the two parties make together, batch by batch, in advance: the client asks, the server takes part.

    client: {"prepare": images of the batch, "outline", "session", "batch"}      the last two empty, or where it was
    server: {"protocol", "outline", "numbers", "session", "batch", "added"}, or a refusal
    both:   the lots, unless they are in the server's pool already ("added")
    client: {"usable": lots of the batch that it can use}
    server: {"added": how many}, once they are in its pool

and so on, with the next batch or {"end"}. The server adds first, so the client never has a lot that the server lacks; a
client that missed the answer asks for the same batch again. Lots are in a pool as a dealer's are, marked and spent in
the same way. Interrupted at any time, by either party, it goes on with the units that both have.
"""

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from deepshare.errors import EngineError
from deepshare.files import sync_folder, write_atomically
from deepshare.private.engines.gateshare.client import ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import PartyMeter
from deepshare.private.engines.gateshare.crypto.homomorphic import check_installed
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat, calibrate
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, LotBatch
from deepshare.private.engines.gateshare.preprocessing.marks import FILE, UNUSABLE, Marks
from deepshare.private.engines.gateshare.preprocessing.pool import (
    ABOUT,
    CERTIFICATES,
    LOTS,
    MADE,
    MADE_FORM,
    check_party,
    write_about,
    write_lot,
)
from deepshare.private.engines.gateshare.preprocessing.spare_lots import unusable
from deepshare.private.engines.gateshare.preprocessing.together import LotMaker, done_share, load_units, new_lots
from deepshare.private.engines.gateshare.preprocessing.unfinished import FOLDER, Unfinished, discard
from deepshare.private.engines.gateshare.protocols.schedule import Schedule, agreed_format, begin, offer, session_id
from deepshare.private.engines.gateshare.server import weights_digest
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.preprocessing import Prepared
from deepshare.private.transport.channel import Channel, RefusalError

BATCH = 8
"""Images that are made together; more would need more memory."""

GOAL = "goal.json"
"""File of a client's pool: how many lots it is to get, and how many it had before."""

MOST_POOLS, MOST_BEGUN = 16, 2
"""Pools of one client on a server, and how many of which it has not finished a lot."""

LOCAL = "its part of making lots failed, and its log says why: prepare again"

OnProgress = Callable[[float, str], None]


def pool_path(pools: Path, owner: str, session: bytes) -> Path:
    """The server's pool of a client's session."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", owner)[:40] or "client"
    return pools / f"{name}-{session.hex()}"


class ServerMaking:
    """The server's side of one connection.

    Args:
        program: With its weights.
        pools: Folder of pools.
        owner: The client's name.
        channel: The connection to the client.
        left: Images that may still be made for it.
        named: Whether the name is that in its certificate.
    """

    def __init__(
        self, program: Program, pools: Path, owner: str, channel: Channel, *, left: int, named: bool = False
    ) -> None:
        self._program, self._pools, self._owner, self._channel = program, pools, owner, channel
        self._left, self._named = left, named
        self._weights = weights_digest(program)
        self._maker: LotMaker | None = None
        self._session: bytes | None = None

    def answer(self, request: Mapping[str, Any]) -> int:
        """Make the batch that a client asks for; returns how many lots were added."""
        images, session, wanted = read_request(request)
        if self._session not in (None, session):
            raise RefusalError("a batch of another pool than the connection's: connect anew")
        if not session:
            self._make_room()
        pool = pool_path(self._pools, self._owner, session or os.urandom(ID_BYTES))
        if session and not (pool / ABOUT).exists() and Unfinished.find(pool) is None:
            raise RefusalError("this server has no pool of the client's: prepare with another --pool")
        session = bytes.fromhex(pool.name[-2 * ID_BYTES :])
        number_format = self._format(pool)
        steps = schedule(self._program, number_format, dealt=False)
        work, added = Unfinished.find(pool), bool(wanted) and self._has(pool, wanted, images)
        if added:  # also if it was killed before it discarded the units: made again, they would be other lots
            work = None
            discard(pool)
        elif work is not None and (work.header.batch, work.images) == (wanted.hex(), images):
            self._check_weights(work)
        else:
            work = None
        if not added and images > self._left:
            raise RefusalError(f"{self._left:,} more images may be made for this client: ask for no more")
        if work is None and not added:
            wanted = os.urandom(ID_BYTES)
            work = Unfinished.create(
                pool,
                images=images,
                batch=wanted,
                session=session,
                outline=outline.digest(self._program),
                numbers=number_format.dump(),
                weights=self._weights,
            )
        said = {"session": session.hex(), "batch": wanted.hex(), "added": added}
        self._channel.send_message(offer(self._program, number_format) | said)
        if self._session is None:
            self._session = session
            begin(session, steps, self._channel)
        return 0 if work is None else self._make(steps, pool, work)

    def _make_room(self) -> None:
        """Before a new pool is begun: a client has few, and fewer of which no lot was finished."""
        own = re.compile(re.escape(pool_path(Path(), self._owner, b"").name) + f"[0-9a-f]{{{2 * ID_BYTES}}}")
        there = [path for path in self._pools.glob("*") if own.fullmatch(path.name)]
        finished = [path for path in there if (path / ABOUT).exists()]
        if len(finished) >= MOST_POOLS:
            raise RefusalError(f"this client has {MOST_POOLS} pools here: go on with one of them (--pool)")
        begun = sorted(set(there) - set(finished), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in begun[MOST_BEGUN - 1 :]:
            shutil.rmtree(path, ignore_errors=True)

    def _make(self, steps: Schedule, pool: Path, work: Unfinished) -> int:
        self._left -= work.images
        if self._maker is None:
            self._maker = LotMaker.begin(steps, "server", self._channel)
        lots = work.lots()
        self._maker.make(lots, work)
        usable = read_usable(self._channel.receive_message(), lots.images)
        add_to_pool(pool, "server", self._owner, self._program, steps, work, lots, usable, named=self._named)
        with closing(Marks(pool)) as marks:
            marks.bind(self._weights)
        discard(pool)
        self._channel.send_message({"added": len(usable)})
        return len(usable)

    def _format(self, pool: Path) -> NumberFormat:
        if (pool / ABOUT).exists():
            about = check_party(pool, "server")
            with closing(Marks(pool)) as marks:
                if not marks.bind(self._weights):
                    raise RefusalError("the server's weights are others by now: prepare with another --pool")
            return NumberFormat.parse(about["numbers"], self._program)
        if (work := Unfinished.find(pool)) is not None:
            return NumberFormat.parse(work.header.numbers, self._program)
        return calibrate(self._program, dealt=False)

    def _check_weights(self, work: Unfinished) -> None:
        if work.header.weights != self._weights.hex():
            raise RefusalError("the server's weights are others by now: prepare with another --pool")

    def _has(self, pool: Path, batch: bytes, images: int) -> bool:
        """Return True if lots of a batch are in the pool."""
        if not (pool / ABOUT).exists():
            return False
        with closing(Marks(pool)) as marks:
            return any(marks.state(lot.id) is not None for lot, _ in new_lots(batch, [b""] * images).parts)


class ClientMaking:
    """The client's side of one connection.

    Args:
        program: The outline.
        pool: This party's pool; made if it is not there.
        channel: The connection to the server.

    Raises:
        EngineError: The pool is of something else.
    """

    def __init__(self, program: Program, pool: Path, channel: Channel) -> None:
        self._program, self._pool, self._channel = program, pool, channel
        check_own_pool(pool, program)
        self._session: bytes | None = None
        self._maker: LotMaker | None = None

    def unfinished(self) -> int:
        """Images of a batch that was begun before."""
        work = Unfinished.find(self._pool)
        return 0 if work is None else work.images

    def make(self, images: int, on_progress: OnProgress) -> int:
        """Make a batch, or go on with the one that was begun; returns how many lots of it can be used."""
        work = Unfinished.find(self._pool)
        session = check_own_pool(self._pool, self._program)
        self._channel.send_message(
            {
                "prepare": images if work is None else work.images,
                "outline": outline.digest(self._program),
                "session": session or ("" if work is None else work.header.session),
                "batch": "" if work is None else work.header.batch,
            }
        )
        said = self._channel.receive_message()
        number_format, agreed = agreed_format(said, self._program), session_id(said)
        batch = _hex(said, "batch")
        if session and agreed.hex() != session:
            raise EngineError("the server names another pool than was asked for: install the same deepshare")
        steps = schedule(self._program, number_format, dealt=False)
        if self._session is None:
            self._session = agreed
            begin(agreed, steps, self._channel)
        if work is None or work.header.batch != batch.hex():
            work = Unfinished.create(
                self._pool,
                images=images if work is None else work.images,
                batch=batch,
                session=agreed,
                outline=outline.digest(self._program),
                numbers=number_format.dump(),
            )
        if self._maker is None and not said.get("added"):
            on_progress(done_share(steps, work.lots(), work), "session setup: keys for transfers and encryption")
            self._maker = LotMaker.begin(steps, "client", self._channel)
        return self._finish(steps, work, bool(said.get("added")), on_progress)

    def _finish(self, steps: Schedule, work: Unfinished, added: bool, on_progress: OnProgress) -> int:
        lots = work.lots()
        if added:
            if work.header.usable is None:
                raise EngineError("the server has lots that were never finished here: prepare with another --pool")
            load_units(steps, "client", lots, work)
        else:
            if self._maker is None:
                raise AssertionError("nothing was begun")
            self._maker.make(lots, work, on_progress)
            work.keep_usable(usable_lots(steps, lots))
            self._channel.send_message({"usable": work.header.usable})
            self._channel.receive_message()
        usable = work.header.usable or []
        add_to_pool(self._pool, "client", "client", self._program, steps, work, lots, usable)
        discard(self._pool)
        return len(usable)


def usable_lots(steps: Schedule, lots: LotBatch) -> list[int]:
    """The lots of which the client can truncate all shares."""
    client = ClientParty(steps, {})
    return [place for place, (lot, _) in enumerate(lots.parts) if client.preprocess(lot, fresh_seed()).usable]


def add_to_pool(
    pool: Path,
    party: Holder,
    owner: str,
    program: Program,
    steps: Schedule,
    work: Unfinished,
    lots: LotBatch,
    usable: list[int],
    *,
    named: bool = False,
) -> None:
    """Add finished lots to a pool, which is made with the first; done again after a kill, it changes nothing.

    Those that cannot be used are noted too: they count as made.
    """
    try:
        (pool / LOTS).mkdir(exist_ok=True, mode=0o700)
        every = [lot for lot, _ in lots.parts]
        with closing(Marks(pool) if (pool / FILE).exists() else Marks.create(pool, {})) as marks:
            fresh = [every[place] for place in usable if marks.state(every[place].id) is None]
            for lot in fresh:
                write_lot(pool, steps, lot, party)
            sync_folder(pool / LOTS)
            if not (pool / ABOUT).exists():  # before lots are noted: those of a batch in a pool are not made again
                session = bytes.fromhex(work.header.session)
                own: dict[str, object] = {"engine": MADE, "form": MADE_FORM}
                if named:
                    own["owners"] = CERTIFICATES
                write_about(pool, party, session, program, steps.number_format, own)
            marks.add([lot.id for lot in fresh], owner)
            useless = [lot.id for lot in every if marks.state(lot.id) is None]
            marks.add(useless, owner, state=UNUSABLE)
    except OSError as error:
        raise EngineError(f"{pool} cannot be written ({error.strerror}): give another folder") from error


def check_own_pool(pool: Path, program: Program) -> str:
    """The session of a client's pool, "" if it is new.

    Raises:
        EngineError: It is another party's, or of another network, or not made by two parties.
    """
    if not (pool / ABOUT).exists():
        if pool.exists() and any(path.name != FOLDER and not path.name.startswith(".") for path in pool.iterdir()):
            known = {LOTS, FILE, f"{FILE}-wal", f"{FILE}-shm", FOLDER, GOAL}
            if others := sorted(path.name for path in pool.iterdir() if path.name not in known):
                raise EngineError(f"{pool} holds {others[0]} and is no pool: give an empty folder, or none that exists")
        return ""
    about = check_party(pool, "client")
    if about.get("engine") != MADE:
        raise EngineError(f"{pool} was dealt by a dealer: give another folder for lots that you make with a server")
    if about.get("outline") != outline.digest(program):
        raise EngineError(f"{pool} was made for another network or plan: give another folder")
    return str(about["session"])


def read_request(request: Mapping[str, Any]) -> tuple[int, bytes, bytes]:
    """Images, session and batch of a request; the last two may be empty.

    Raises:
        RefusalError: It is something else.
    """
    images = request.get("prepare")
    if type(images) is not int or not 1 <= images <= BATCH:
        raise RefusalError(f"a batch of {images} images: ask for 1 to {BATCH}")
    return images, _hex(request, "session", empty=True), _hex(request, "batch", empty=True)


def read_usable(message: Mapping[str, Any], images: int) -> list[int]:
    """The lots that a client can use.

    Raises:
        RefusalError: It says something else.
    """
    rows = message.get("usable")
    if not isinstance(rows, list) or any(type(row) is not int or not 0 <= row < images for row in rows):
        raise RefusalError("the client does not say which lots it can use: install the same deepshare")
    return sorted(set(rows))


def _hex(message: Mapping[str, Any], name: str, *, empty: bool = False) -> bytes:
    try:
        found = bytes.fromhex(message[name])
    except (KeyError, TypeError, ValueError):
        found = b"?"
    if len(found) != ID_BYTES and not (empty and not found):
        raise RefusalError(f"the {name} has no name: install the same deepshare everywhere")
    return found


def make_pool(program: Program, pool: Path, channel: Channel, images: int, on_progress: OnProgress) -> Prepared:
    """Make lots for so many images with a server, in batches.

    How many there are to be is kept in the pool until they are there. So the same call goes on to the same number after
    a kill, and what was made before it counts; one for another number begins anew.

    Args:
        program: The outline.
        pool: This party's pool; made if it is not there.
        channel: The connection to the server.
        images: How many; those of a batch that was begun before are among them.
        on_progress: Called with the share of the work that is done, and the layer at work.

    Raises:
        EngineError: The pool is of something else, or the server sent something else.
        ConnectionError: It is gone; the same call goes on with what both have.
    """
    making = ClientMaking(program, pool, channel)
    begun = _begun(pool, images)
    with torch.no_grad():
        while (made := _lots(pool) - begun) < images:
            size = making.unfinished() or min(BATCH, images - made)

            def part(share: float, layer: str, made: int = made, size: int = size) -> None:
                on_progress(min(1.0, (made + size * share) / max(images, made + size)), layer)

            making.make(size, part)
    numbers = NumberFormat.parse(check_party(pool, "client")["numbers"], program)
    (pool / GOAL).unlink(missing_ok=True)
    channel.send_message({"end": True})
    return Prepared(made, unusable(schedule(program, numbers, dealt=False)))


def _begun(pool: Path, images: int) -> int:
    """Lots that a pool had when it was first to get so many more."""
    with suppress(OSError, ValueError, TypeError):
        goal = json.loads((pool / GOAL).read_text(encoding="utf-8"))
        if goal["images"] == images and type(goal["begun"]) is int:
            return goal["begun"]
    begun = _lots(pool)
    try:
        pool.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(pool / GOAL, json.dumps({"images": images, "begun": begun}).encode(), 0o600)
    except OSError as error:
        raise EngineError(f"{pool} cannot be written ({error.strerror}): give another folder") from error
    return begun


def _lots(pool: Path) -> int:
    """Lots of a pool that can be used, or were."""
    if not (pool / FILE).exists():
        return 0
    with closing(Marks(pool)) as marks:
        return sum(stock.lots - stock.unusable for stock in marks.stock())


def check_can_make(program: Program) -> None:
    """Refuse to make lots for squares or products of hidden numbers without the library that multiplies them.

    Raises:
        EngineError: Says what to install.
    """
    if schedule(program, NumberFormat.usual(program), dealt=False).encrypted(1):
        check_installed()


def take_part(task: Task, ready: Callable[[], None]) -> Outcome:
    """Make lots with a client, in a process of its own whose connection is relayed; for as long as the client asks."""
    extras = task.extras
    channel = Channel(socket.socket(fileno=extras["connection"]), "client")
    channel.resume(extras["position"])
    ready()
    making = ServerMaking(
        task.program, extras["pools"], extras["owner"], channel, left=extras["left"], named=extras["named"]
    )
    request, added = extras["request"], 0
    meter = PartyMeter([channel], "server_bytes")
    try:
        with torch.no_grad():
            while not request.get("end"):
                added += making.answer(request)
                request = channel.receive_message()
    except EngineError as error:
        with suppress(OSError):
            channel.connection.sendall(channel.failure(str(error) if isinstance(error, RefusalError) else LOCAL))
        raise
    return Outcome(None, {}, replace(meter.part(), products=added))
