"""A batch of lots in the making on a party's disk: units that are done survive a kill, and serve nobody but this batch.

A folder within the pool. `batch.json` has the batch: its id, the seeds of this party's lots, and what the pool is for.
Every unit is a file: its tag, what it has made, and a digest. What is damaged is made again.
"""

import io
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from deepshare.errors import EngineError
from deepshare.files import write_atomically
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import ID_BYTES, LotBatch
from deepshare.private.engines.gateshare.preprocessing.pool import MADE_FORM, content_digest
from deepshare.private.engines.gateshare.preprocessing.together import TAG_BYTES, Arrays, new_lots

FOLDER, _FILE = "making", "batch.json"
_UNITS = 2
_CHECK_BYTES = 32  # of `content_digest`


@dataclass(frozen=True, kw_only=True)
class BatchHeader:
    """The header of a batch.

    Attributes:
        batch: Its id, in hex.
        session: Id of the pool's session, in hex.
        form: What lots hold; see `MADE_FORM`.
        outline: Digest of the network.
        numbers: The number format.
        weights: Digest of the weights, in hex; the server's alone.
        seeds: Of this party's lots, in hex.
        usable: Lots that the client can use, once it has looked.
        units: How the work is cut; batches that were cut otherwise are begun again.
    """

    batch: str
    session: str
    form: int
    outline: str
    numbers: dict[str, Any]
    weights: str
    seeds: list[str]
    usable: list[int] | None = None
    units: int = 1


class Unfinished:
    """A batch in the making; see `UnitStore`.

    Attributes:
        header: What it is.
    """

    def __init__(self, folder: Path, header: BatchHeader) -> None:
        self._folder, self.header = folder, header
        self._done = self._count()

    @classmethod
    def create(
        cls,
        pool: Path,
        *,
        images: int,
        batch: bytes,
        session: bytes,
        outline: str,
        numbers: dict[str, Any],
        weights: bytes = b"",
    ) -> Self:
        """Begin a batch, in place of any other.

        Raises:
            EngineError: It cannot be written.
        """
        header = BatchHeader(
            batch=batch.hex(),
            session=session.hex(),
            form=MADE_FORM,
            outline=outline,
            numbers=numbers,
            weights=weights.hex(),
            seeds=[fresh_seed().hex() for _ in range(images)],
            units=_UNITS,
        )
        try:
            discard(pool)
            pool.mkdir(parents=True, exist_ok=True, mode=0o700)
            (pool / FOLDER).mkdir(mode=0o700)
            made = cls(pool / FOLDER, header)
            made._write_header()
        except OSError as error:
            raise EngineError(f"{pool} cannot be written ({error.strerror}): give another folder") from error
        return made

    @classmethod
    def find(cls, pool: Path) -> Self | None:
        """The batch in the making of a pool, if there is one that can be gone on with."""
        try:
            header = BatchHeader(**json.loads((pool / FOLDER / _FILE).read_text(encoding="utf-8")))
            ids = [bytes.fromhex(text) for text in (header.batch, header.session)]
            known = (header.form, header.units) == (MADE_FORM, _UNITS)
            sound = known and all(len(one) == ID_BYTES for one in ids) and header.seeds
        except (OSError, ValueError, TypeError):
            return None
        return cls(pool / FOLDER, header) if sound else None

    @property
    def images(self) -> int:
        """Number of lots."""
        return len(self.header.seeds)

    def lots(self) -> LotBatch:
        """Its lots, empty."""
        return new_lots(bytes.fromhex(self.header.batch), [bytes.fromhex(seed) for seed in self.header.seeds])

    def tags(self) -> list[bytes]:
        """Tags of all units that are done, in order."""
        return [self._content(number)[:TAG_BYTES] for number in range(self._done)]

    def cut(self, count: int) -> None:
        """Forget all units but the first."""
        for number in range(count, self._done):
            self._path(number).unlink(missing_ok=True)
        self._done = min(self._done, count)

    def read(self, number: int) -> Arrays:
        """Read the results of a unit."""
        with np.load(io.BytesIO(self._content(number)[TAG_BYTES:])) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def save(self, tag: bytes, arrays: Arrays) -> None:
        """Add a unit; it is on the disk when this returns."""
        room = io.BytesIO()
        np.savez(room, allow_pickle=False, **arrays)
        content = tag + room.getvalue()
        write_atomically(self._path(self._done), content + content_digest(content), 0o600)
        self._done += 1

    def keep_usable(self, rows: list[int]) -> None:
        """Record which lots the client can use, before it says so."""
        self.header = BatchHeader(**{**asdict(self.header), "usable": rows})
        self._write_header()

    def _write_header(self) -> None:
        write_atomically(self._folder / _FILE, json.dumps(asdict(self.header)).encode(), 0o600)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05}"

    def _content(self, number: int) -> bytes:
        return self._path(number).read_bytes()[:-_CHECK_BYTES]

    def _count(self) -> int:
        """Units that are whole."""
        number = 0
        with suppress(OSError):
            while True:
                data = self._path(number).read_bytes()
                if len(data) < TAG_BYTES + _CHECK_BYTES or data[-_CHECK_BYTES:] != content_digest(data[:-_CHECK_BYTES]):
                    break
                number += 1
        return number


def discard(pool: Path) -> None:
    """Delete what a pool has in the making."""
    if (pool / FOLDER).exists():
        gone = pool / f".{FOLDER}.{os.urandom(4).hex()}"
        (pool / FOLDER).rename(gone)  # at once
        shutil.rmtree(gone, ignore_errors=True)
