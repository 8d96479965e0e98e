"""Pools: lots on disk, dealt beforehand; a folder for each party, in which every lot can be used once.

A lot is marked as spent, on the disk itself, before any of it is used: a party that is killed loses at most the lots
that it was about to use. A client whose disk was restored from an older copy offers spent lots again; the server
refuses them by its own marks.

The client cannot use every lot, so there are more lots than images. It records those that it discarded; all other
spent ones count as images.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from deepshare.errors import EngineError
from deepshare.files import write_atomically
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot, Party
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program

VERSION = 3
ABOUT, LOTS, SPENT, DISCARDED = "pool.json", "lots", "spent", "discarded"
WEIGHTS, MASKED_WEIGHTS = "weights", "offsets"
_LINE = 2 * ID_BYTES + 1
_MARK = re.compile(rb"[0-9a-f]{%d}\n" % (2 * ID_BYTES))
_CHECK_BYTES = 32


def write_pools(
    folder: Path,
    program: Program,
    number_format: NumberFormat,
    images: int,
    told: Callable[[int, int], None],
    clients: int = 1,
) -> int:
    """Deal for a number of images: `folder/server` for one party, `folder/client` for the other.

    Args:
        folder: The folder of both; theirs must not exist.
        program: An outline.
        number_format: The server's.
        images: How many, for each client.
        told: Called after each lot with the number done and the total.
        clients: How many; the folders of several are `client-1`, `client-2` and so on. The server serves them all
            from its one pool, and the images dealt for a client are all that it can ever ask.

    Returns:
        How many lots more than images each client has, as some turn out to be unusable.

    Raises:
        EngineError: There are pools already, or they cannot be written.
    """
    theirs = [folder / "client"] if clients == 1 else [folder / f"client-{number + 1}" for number in range(clients)]
    parties: dict[Path, Party] = {folder / "server": "server", **dict.fromkeys(theirs, "client")}
    there = [str(path) for path in parties if path.exists()]
    if there:
        raise EngineError(f"{', '.join(there)} is there already: give another folder, or delete it")
    steps = schedule(program, number_format)
    dealer, spare = LotDealer(steps), spare_lots(steps, images)
    each = images + spare
    try:
        for path in parties:
            (path / LOTS).mkdir(parents=True)
            path.chmod(0o700)
            write_atomically(path / SPENT, b"")
        for count in range(each * clients):
            for_server, for_client = dealer.deal(1)
            _write_lot(folder / "server", steps, for_server, "server")
            _write_lot(theirs[count // each], steps, for_client, "client")
            told(count + 1, each * clients)
        for path, party in parties.items():
            about = {"version": VERSION, "party": party, "session": dealer.id.hex(), "numbers": number_format.dump()}
            own = {"seed": dealer.seed.hex()} if party == "server" else {"images": images}
            text = json.dumps(about | own | {"outline": outline.digest(program)})
            write_atomically(path / ABOUT, text.encode())
            (path / ABOUT).chmod(0o600)
    except OSError as error:
        raise EngineError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
    return spare


def _write_lot(folder: Path, steps: Schedule, lot: Lot, party: Party) -> None:
    content = b"".join([lot.id, lot.seed, *(lot.pieces[piece].tobytes() for piece in steps.dealt_bytes(1, party))])
    write_atomically(folder / LOTS / lot.id.hex(), content + _check(content))


class LotPool:
    """One party's lots on disk; see `ClientLots` and `ServerLots`.

    Args:
        folder: The party's folder.
        party: The party.
        program: The network that it was dealt for.

    Attributes:
        session: Id of the session that all its lots belong to.
        seed: Of the masks that hide the weights; the server's alone.
        number_format: The number format.
        images: How many images it was dealt for; the client's alone.

    Raises:
        EngineError: There is no pool, or it is for another party, network or plan.
    """

    def __init__(self, folder: Path, party: Party, program: Program) -> None:
        about = check_party(folder, party)
        if about.get("outline") != outline.digest(program):
            raise EngineError(f"{folder} was dealt for another network or plan: deal for this one")
        self.number_format = NumberFormat.parse(about.get("numbers"), program)
        try:
            self.session, self.seed = (bytes.fromhex(about.get(name, "")) for name in ("session", "seed"))
            self.images = int(about.get("images", 0))
        except (TypeError, ValueError) as error:
            raise EngineError(f"{folder / ABOUT} is damaged: deal anew") from error
        if not (folder / SPENT).exists():
            raise EngineError(f"{folder} has lost its marks of what is spent: deal anew")
        self._folder, self._party = folder, party
        self._schedule = schedule(program, self.number_format)

    def bind(self, digest: bytes) -> None:
        """Bind the pool to one exact set of weights: other weights, hidden by the same masks, would show.

        Raises:
            EngineError: It was used with others.
        """
        path = self._folder / WEIGHTS
        with self._locked():
            if not path.exists():
                write_atomically(path, digest)
            if path.read_bytes() != digest:
                raise EngineError(f"{self._folder} was used with other weights: deal a pool for these")

    def masked_weights(self) -> bytearray | None:
        """The masked weights of the server, if they are here and whole."""
        path = self._folder / MASKED_WEIGHTS
        content = bytearray(path.read_bytes()) if path.exists() else bytearray()
        found, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
        return found if check == _check(found) else None

    def keep_masked_weights(self, content: bytes) -> None:
        """Keep the masked weights: they serve all lots of the pool."""
        write_atomically(self._folder / MASKED_WEIGHTS, content + _check(content))

    def names(self) -> list[bytes]:
        """Ids of the lots that are left."""
        names = (bytes.fromhex(path.name) for path in (self._folder / LOTS).iterdir() if len(path.name) == _LINE - 1)
        return sorted(set(names) - self._spent())

    def left(self) -> int:
        """How many images the client can still ask."""
        path = self._folder / DISCARDED
        discarded = path.stat().st_size // _LINE if path.exists() else 0
        return max(0, min(self.images + discarded - len(self._spent()), len(self.names())))

    def is_fresh(self, name: bytes) -> bool:
        """Whether a lot is there and was never taken."""
        return name not in self._spent() and self._path(name).exists()

    def take(self, name: bytes) -> Lot:
        """Take a lot out for good: it is marked on the disk before it is read.

        Raises:
            EngineError: It is spent, missing or damaged.
        """
        with self._locked() as spent:
            if name in self._spent():
                raise EngineError(f"lot {name.hex()} is spent: correlated randomness may be used once only")
            if not self._path(name).exists():
                raise EngineError(f"there is no lot {name.hex()} in {self._folder}: both pools must be of one dealing")
            spent.write(f"{name.hex()}\n".encode())
            spent.flush()
            os.fsync(spent.fileno())
        lot = self._read(name)
        self._path(name).unlink()
        return lot

    def discard(self, name: bytes) -> None:
        """Record that a lot, which is spent, was unusable."""
        with self._locked(DISCARDED) as discarded:
            discarded.write(f"{name.hex()}\n".encode())

    def check(self, images: int) -> None:
        """Refuse more images than are left of those that were dealt, before any lot is spent."""
        left = self.left()
        if images > left:
            raise EngineError(f"{images} images, and the pool is good for {left} more: deal anew, or ask fewer")

    def get(self, images: int) -> list[Lot]:
        """Take the first lots that are left, one for each image."""
        names = self.names()
        if len(names) < images:
            raise EngineError(f"{images} images wanting, and {len(names)} lots left in the pool: deal anew")
        return [self.take(name) for name in names[:images]]

    def expect(self, images: int) -> None:
        """Refuse to receive a lot: there is no dealer to ask."""
        raise EngineError("the client asks for lots and this server has a pool: give the client its own with --pool")

    def dealt_bytes(self, lot: Lot) -> int:
        """All bytes of a lot, as no dealer counts them any more."""
        return len(lot.id) + len(lot.seed) + sum(piece.nbytes for piece in lot.pieces.values())

    def _path(self, name: bytes) -> Path:
        return self._folder / LOTS / name.hex()

    def _spent(self) -> set[bytes]:
        """Ids that are marked; an unfinished line marks nothing, as nothing was used after it."""
        marks = (self._folder / SPENT).read_bytes()
        lines = [marks[begin : begin + _LINE] for begin in range(0, len(marks) - _LINE + 1, _LINE)]
        if not all(_MARK.fullmatch(line) for line in lines):
            raise EngineError(f"{self._folder / SPENT} is damaged, and lots must not be used twice: deal anew")
        return {bytes.fromhex(line.decode()) for line in lines}

    @contextmanager
    def _locked(self, marks: str = SPENT) -> Iterator[BinaryIO]:
        """Open a file of marks for this process alone, at the beginning of a line."""
        with (self._folder / marks).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)  # others may have written since it was opened
            if file.tell() % _LINE:
                file.truncate(file.tell() - file.tell() % _LINE)
            yield file

    def _read(self, name: bytes) -> Lot:
        data = np.fromfile(self._path(name), np.uint8)
        content = data[:-_CHECK_BYTES]
        whole = len(content) == self._schedule.lot_bytes(1, self._party)
        if not whole or data[-_CHECK_BYTES:].tobytes() != _check(content.data) or content[:ID_BYTES].tobytes() != name:
            raise EngineError(f"lot {name.hex()} in {self._folder} is damaged: it will not be used; ask again")
        pieces, begin = {}, ID_BYTES + SEED_BYTES
        for piece, size in self._schedule.dealt_bytes(1, self._party).items():
            pieces[piece] = content[begin : begin + size].copy()  # its numbers aligned
            begin += size
        return Lot(name, content[ID_BYTES : ID_BYTES + SEED_BYTES].tobytes(), 1, pieces)


def check_party(folder: Path, party: Party) -> dict[str, str]:
    """Read the description of a pool, and check that it is one of this party.

    Raises:
        EngineError: It is no pool, or of the other party.
    """
    about = _about(folder)
    if about.get("party") != party:
        raise EngineError(f"{folder} is the pool of the {about.get('party')}: the {party} needs the other one")
    return about


def _about(folder: Path) -> dict[str, str]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(f"there is no finished pool in {folder}: make one with deepshare private deal") from error
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder / ABOUT} is damaged: deal anew") from error
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise EngineError(f"{folder} is a pool of another version: deal with the same deepshare")
    return about


def _check(content: bytes | bytearray | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECK_BYTES).digest()
