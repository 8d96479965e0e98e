"""Marks: which lots a pool has, whose they are, and when they were spent; a SQLite file in the pool's folder.

A mark is on the disk before the call that makes it returns (write-ahead log, synchronous FULL). Whoever only reads has
a connection of its own, and waits for nobody that writes. Files of marks that earlier versions kept are taken over
once, and renamed.
"""

import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.lot import ID_BYTES
from deepshare.private.transport.channel import RefusalError

FILE = "marks.sqlite"
SPENT, DISCARDED = "spent", "discarded"
"""Files of earlier versions, a line for each lot."""

FRESH, USED, UNUSABLE, DOUBTED = range(4)
"""States of a lot. A doubted one is fresh here, and spent as the other party says."""

_LINE = 2 * ID_BYTES + 1
_MARK = re.compile(rb"[0-9a-f]{%d}\n" % (2 * ID_BYTES))
_TABLES = """
CREATE TABLE lots (id BLOB PRIMARY KEY, owner TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, at REAL) WITHOUT ROWID;
CREATE INDEX states ON lots (state, owner);
CREATE TABLE owners (name TEXT PRIMARY KEY, images INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE weights (digest BLOB NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class Stock:
    """Lots of one owner in a pool.

    Attributes:
        owner: The client's name; "" where it is not known.
        fresh: Lots that were never used.
        used: Lots that were used for images, or lost.
        unusable: Lots that the client discarded.
        doubted: Lots that the other party calls spent.
        images: Images that it may ask in all; None without a limit.
        rate: Images a day, over the last week.
    """

    owner: str
    fresh: int
    used: int
    unusable: int
    doubted: int
    images: int | None
    rate: float

    @property
    def lots(self) -> int:
        """Lots that were ever here."""
        return self.fresh + self.used + self.unusable + self.doubted

    @property
    def left(self) -> int:
        """Images that it can still ask."""
        return self.fresh if self.images is None else max(0, min(self.images - self.used, self.fresh + self.doubted))

    @property
    def dealt(self) -> int:
        """Images that it could ask at first."""
        return self.used + self.left if self.images is None else self.images


class Marks:
    """The marks of one pool, for all threads and processes that open it.

    Args:
        folder: The pool's.

    Raises:
        EngineError: They are lost or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._reading, self._writing = folder, threading.Lock(), threading.Lock()
        with _sound(self._folder):
            if (folder / SPENT).exists():
                _take_over(folder)
            if not (folder / FILE).exists():
                raise EngineError(f"{folder} has lost its marks of what is spent: deal anew")
            self._base = _opened(folder)
            self._base.execute("SELECT count(*) FROM lots, owners, weights").fetchone()
            self._written: sqlite3.Connection | None = None  # opened with the first mark

    @classmethod
    def create(cls, folder: Path, owners: dict[str, int]) -> "Marks":
        """Begin a pool.

        Args:
            folder: The pool's.
            owners: Images that each client may ask.
        """
        (folder / FILE).touch(0o600)  # files beside it get its permissions
        with _sound(folder), closing(_opened(folder)) as base:
            base.executescript(_TABLES)
            base.executemany("INSERT INTO owners VALUES (?, ?)", owners.items())
        return cls(folder)

    def close(self) -> None:
        """Close the file, whole in itself, when no thread is using it any more."""
        with self._writing, self._reading:
            self._base.close()
            if self._written is not None:
                self._written.close()
            self._written = self._base  # a later mark is refused

    def add(self, names: Iterable[bytes], owner: str, images: int | None = None, *, state: int = FRESH) -> None:
        """Add lots of an owner, and set how many images it may ask in all."""
        with self._change() as base:
            if images is not None:
                base.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (owner, images))
            rows = [(name, owner, state) for name in names]
            base.executemany("INSERT INTO lots (id, owner, state) VALUES (?, ?, ?)", rows)

    def fresh(self) -> list[bytes]:
        """Ids of the lots that are left, doubted ones last."""
        with _sound(self._folder), self._reading:
            rows = self._base.execute("SELECT id FROM lots WHERE state IN (0, 3) ORDER BY state, id").fetchall()
        return [name for (name,) in rows]

    def spent(self) -> list[bytes]:
        """Ids of the lots that are spent."""
        with _sound(self._folder), self._reading:
            return [name for (name,) in self._base.execute("SELECT id FROM lots WHERE state IN (1, 2)")]

    def state(self, name: bytes) -> tuple[int, str] | None:
        """State and owner of a lot; None if it was never here."""
        with _sound(self._folder), self._reading:
            row: tuple[int, str] | None = self._base.execute(
                "SELECT state, owner FROM lots WHERE id = ?", (name,)
            ).fetchone()
        return row

    def spend(self, names: Iterable[bytes], *, limited: bool) -> None:
        """Mark lots as used, all or none.

        Args:
            names: Their ids.
            limited: Whether to enforce how many images an owner may ask.

        Raises:
            RefusalError: One is spent, missing, or beyond what its owner may ask.
        """
        with self._change() as base:
            now = time.time()
            for name in names:
                row = base.execute("SELECT state, owner FROM lots WHERE id = ?", (name,)).fetchone()
                if row is None:
                    raise RefusalError(f"there is no lot {name.hex()}: both pools must be of one dealing")
                if row[0] in (USED, UNUSABLE):
                    raise RefusalError(f"lot {name.hex()} is spent: correlated randomness may be used once only")
                base.execute("UPDATE lots SET state = 1, at = ? WHERE id = ?", (now, name))
                if limited:
                    _check_limit(base, row[1])

    def discard(self, name: bytes) -> None:
        """Record that a lot, which is spent, was unusable."""
        with self._change() as base:
            base.execute("UPDATE lots SET state = 2 WHERE id = ? AND state = 1", (name,))

    def doubt(self, names: Iterable[bytes]) -> None:
        """Put lots aside that the other party calls spent; they are tried again when there are no others."""
        with self._change() as base:
            base.executemany("UPDATE lots SET state = 3 WHERE id = ? AND state = 0", [(name,) for name in names])

    def bind(self, digest: bytes) -> bool:
        """Bind the pool to one set of weights, if it is not bound yet; returns whether it is bound to this one."""
        with self._change() as base:
            base.execute("INSERT INTO weights SELECT ? WHERE NOT EXISTS (SELECT * FROM weights)", (digest,))
            return bool(base.execute("SELECT digest FROM weights").fetchone()[0] == digest)

    def stock(self) -> list[Stock]:
        """Counts of all owners."""
        week = 7 * 86_400.0
        with _sound(self._folder), self._reading:
            counts = self._base.execute("SELECT owner, state, count(*) FROM lots GROUP BY owner, state").fetchall()
            limits = dict(self._base.execute("SELECT name, images FROM owners"))
            recent = self._base.execute(
                "SELECT owner, count(*), min(at) FROM lots WHERE state = 1 AND at > ? GROUP BY owner",
                (time.time() - week,),
            ).fetchall()
        days = {owner: (count, max(time.time() - first, 3600.0) / 86_400) for owner, count, first in recent}
        found = []
        for owner in sorted({owner for owner, *_ in counts} | set(limits)):
            of = {state: count for name, state, count in counts if name == owner}
            used, span = days.get(owner, (0, 1.0))
            found.append(
                Stock(
                    owner=owner,
                    fresh=of.get(FRESH, 0),
                    used=of.get(USED, 0),
                    unusable=of.get(UNUSABLE, 0),
                    doubted=of.get(DOUBTED, 0),
                    images=limits.get(owner),
                    rate=used / span,
                )
            )
        return found

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is on the disk when it ends."""
        with _sound(self._folder), self._writing:
            if self._written is None:
                self._written = _opened(self._folder)
            base = self._written
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
                base.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    base.execute("ROLLBACK")
                raise


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    """Say what is wrong with the marks in a folder.

    Raises:
        EngineError: They cannot be written, or are damaged.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise EngineError(f"the marks in {folder} cannot be written ({error}): is the disk full?") from error
    except sqlite3.ProgrammingError as error:  # sqlite3's word for a connection that was closed
        raise EngineError(f"the pool in {folder} was closed while it was in use") from error
    except sqlite3.DatabaseError as error:
        raise EngineError(f"{folder / FILE} is damaged, and lots must not be used twice: deal anew") from error


def _opened(folder: Path) -> sqlite3.Connection:
    base = sqlite3.connect(folder / FILE, timeout=60.0, isolation_level=None, check_same_thread=False)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = FULL")
    return base


def _check_limit(base: sqlite3.Connection, owner: str) -> None:
    limit = base.execute("SELECT images FROM owners WHERE name = ?", (owner,)).fetchone()
    if limit is None:
        return
    (used,) = base.execute("SELECT count(*) FROM lots WHERE owner = ? AND state = 1", (owner,)).fetchone()
    if used > limit[0]:
        raise RefusalError(f"all {limit[0]} images that were dealt for this client have been asked: deal anew")


def _take_over(folder: Path) -> None:
    """Take the marks of an earlier version over; done again after a kill, it changes nothing."""
    spent, discarded = (_lines(folder / name) for name in (SPENT, DISCARDED))
    there = [bytes.fromhex(path.name) for path in (folder / "lots").iterdir() if len(path.name) == _LINE - 1]
    (folder / FILE).touch(0o600)
    with closing(_opened(folder)) as base:
        base.execute("BEGIN IMMEDIATE")
        if not base.execute("SELECT count(*) FROM sqlite_master WHERE name = 'lots'").fetchone()[0]:
            for statement in _TABLES.split(";"):
                base.execute(statement)
        base.executemany("INSERT OR IGNORE INTO lots (id, owner) VALUES (?, '')", [(n,) for n in [*there, *spent]])
        for state, names in ((USED, spent), (UNUSABLE, discarded)):
            base.executemany(f"UPDATE lots SET state = {state} WHERE id = ?", [(name,) for name in names])
        if (weights := folder / "weights").exists():
            base.execute(
                "INSERT INTO weights SELECT ? WHERE NOT EXISTS (SELECT * FROM weights)", (weights.read_bytes(),)
            )
        base.execute("COMMIT")
    # An earlier version refuses a pool without this file.
    (folder / SPENT).rename(folder / f"{SPENT}.before-sqlite")


def _lines(path: Path) -> list[bytes]:
    """Ids in a file; an unfinished line marks nothing, as nothing was used after it."""
    data = path.read_bytes() if path.exists() else b""
    lines = [data[begin : begin + _LINE] for begin in range(0, len(data) - _LINE + 1, _LINE)]
    if not all(_MARK.fullmatch(line) for line in lines):
        raise EngineError(f"{path} is damaged, and lots must not be used twice: deal anew")
    return [bytes.fromhex(line.decode()) for line in lines]
