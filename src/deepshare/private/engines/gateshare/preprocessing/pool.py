"""Pools: lots on disk, dealt beforehand; a folder for each party, in which every lot can be used once.

A lot is marked as spent, on the disk itself, before any of it is used: a party that is killed loses at most the lots
that it was about to use. A client whose disk was restored from an older copy offers spent lots again; the server
refuses them by its own marks. What was spent is overwritten and deleted.

The client cannot use every lot, so there are more lots than images. It records those that it discarded; all other
spent ones count as images. The server counts what each client has used, and refuses more than was dealt for it.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from deepshare.errors import EngineError
from deepshare.files import sync_folder, write_atomically
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.preprocessing.marks import DOUBTED, FRESH, Marks, Stock
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots, unusable
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.runtime.preprocessing import Dealt
from deepshare.private.transport.channel import RefusalError

VERSION, EARLIER = 4, 3
NO_POOL = "there is no finished pool in {}: make one with deepshare private deal, or prepare without a dealer"
ABOUT, LOTS, MASKED_WEIGHTS = "pool.json", "lots", "offsets"  # names in pools that are dealt already
DEALT, MADE = "gateshare", "gateshare-2pc"
"""Engines of a pool's lots: those of a dealer, and those that the two parties make."""
MADE_FORM = 2
"""Rises with what two parties put into lots."""
CERTIFICATES = "certificates"
"""Value of `owners` in the description of a server's pool that names owners as their certificates do."""
_CHECK_BYTES = 32


def write_pools(
    folder: Path,
    program: Program,
    number_format: NumberFormat,
    images: int,
    on_progress: Callable[[int, int], None],
    clients: int = 1,
    owners: Sequence[str] = (),
) -> Dealt:
    """Deal for a number of images: `folder/server` for one party, `folder/client` for the other.

    Args:
        folder: The folder of both; theirs must not exist.
        program: An outline.
        number_format: The server's.
        images: How many, for each client.
        on_progress: Called after each lot with the number done and the total.
        clients: How many; the folders of several are `client-1`, `client-2` and so on. The server serves them all
            from its one pool, and the images dealt for a client are all that it can ever ask.
        owners: Names in the clients' certificates, in their order; the server refuses their lots from others. Without
            them whoever has a lot may use it.

    Raises:
        EngineError: There are pools already, or they cannot be written.
    """
    theirs = [folder / "client"] if clients == 1 else [folder / f"client-{number + 1}" for number in range(clients)]
    parties: dict[Path, Holder] = {folder / "server": "server", **dict.fromkeys(theirs, "client")}
    there = [str(path) for path in parties if path.exists()]
    if there:
        raise EngineError(f"{', '.join(there)} is there already: give another folder, or delete it")
    if owners and not len(set(owners)) == len(owners) == clients:
        raise EngineError(f"{len(set(owners))} names of {clients} clients: give each the name in its certificate")
    whose = dict(zip(theirs, owners or [path.name for path in theirs], strict=True))
    steps = schedule(program, number_format)
    dealer, spare = LotDealer(steps), spare_lots(steps, images)
    each = images + spare
    try:
        marks = {}
        for path, party in parties.items():
            (path / LOTS).mkdir(parents=True, mode=0o700)
            path.chmod(0o700)
            marks[path] = Marks.create(path, {whose[one]: images for one in (theirs if party == "server" else [path])})
        for place, path in enumerate(theirs):
            names = []
            for count in range(each):
                for_server, for_client = dealer.deal(1)
                write_lot(folder / "server", steps, for_server, "server")
                write_lot(path, steps, for_client, "client")
                names.append(for_client.id)
                on_progress(place * each + count + 1, each * clients)
            for one in (folder / "server", path):
                marks[one].add(names, whose[path])
        for path, party in parties.items():
            marks[path].close()
            own: dict[str, object] = {"seed": dealer.seed.hex()} if party == "server" else {"images": images}
            if owners and party == "server":
                own["owners"] = CERTIFICATES
            sync_folder(path / LOTS)
            write_about(path, party, dealer.id, program, number_format, own)
        sync_folder(folder)
    except OSError as error:
        raise EngineError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
    return Dealt(spare, unusable(steps))


def write_about(
    folder: Path, party: Holder, session: bytes, program: Program, number_format: NumberFormat, own: dict[str, object]
) -> None:
    """Finish a pool with its description."""
    about = {"version": VERSION, "party": party, "session": session.hex(), "numbers": number_format.dump()}
    text = json.dumps(about | own | {"outline": outline.digest(program)})
    write_atomically(folder / ABOUT, text.encode(), 0o600)


def write_lot(folder: Path, steps: Schedule, lot: Lot, party: Holder) -> None:
    """Write a lot into a pool; whoever writes many syncs the folder afterwards."""
    content = b"".join([lot.id, lot.seed, *(lot.pieces[piece].tobytes() for piece in steps.dealt_bytes(1, party))])
    write_atomically(folder / LOTS / lot.id.hex(), content + content_digest(content), 0o600, sync=False)


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
        images: How many images it was dealt for; the client's alone, and 0 where there is no limit.
        folder: The party's folder.
        dealt: Whether a dealer made its lots.
        named: Whether the owners of its lots are named as their certificates are.

    Raises:
        EngineError: There is no pool, or it is for another party, network or plan.
    """

    def __init__(self, folder: Path, party: Holder, program: Program) -> None:
        about = check_party(folder, party)
        if about.get("outline") != outline.digest(program):
            raise EngineError(f"{folder} was dealt for another network, plan or --answer: deal for this one")
        self.number_format = NumberFormat.parse(about.get("numbers"), program)
        try:
            self.session, self.seed = (bytes.fromhex(about.get(name, "")) for name in ("session", "seed"))
            self.images = int(about.get("images", 0))
        except (TypeError, ValueError) as error:
            raise EngineError(f"{folder / ABOUT} is damaged: deal anew") from error
        self.folder, self._party, self.dealt = folder, party, pool_engine(about) == DEALT
        self.named = about.get("owners") == CERTIFICATES
        self._marks = Marks(folder)
        self._schedule = schedule(program, self.number_format, dealt=self.dealt)
        there = {path.name for path in (folder / LOTS).iterdir()}
        for name in self._marks.spent():  # a process that was killed had no time to
            if name.hex() in there:
                _erase(self._path(name))

    def close(self) -> None:
        """Close its marks."""
        self._marks.close()

    def bind(self, digest: bytes) -> None:
        """Bind the pool to one exact set of weights: other weights, hidden by the same masks, would show.

        Raises:
            EngineError: It was used with others.
        """
        if not self._marks.bind(digest):
            raise EngineError(f"{self.folder} was used with other weights: deal a pool for these")

    def masked_weights(self) -> bytearray | None:
        """The masked weights of the server, if they are here and whole."""
        path = self.folder / MASKED_WEIGHTS
        content = bytearray(path.read_bytes()) if path.exists() else bytearray()
        found, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
        return found if check == content_digest(found) else None

    def keep_masked_weights(self, content: bytes) -> None:
        """Keep the masked weights: they serve all lots of the pool."""
        write_atomically(self.folder / MASKED_WEIGHTS, content + content_digest(content), 0o600)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name

    def names(self) -> list[bytes]:
        """Ids of the lots that are left."""
        return self._marks.fresh()

    def stock(self) -> list[Stock]:
        """Counts of all owners."""
        return self._marks.stock()

    def left(self) -> int:
        """Number of images that the client can still ask."""
        stock = self._marks.stock()
        if not self.dealt:
            return sum(one.left for one in stock)
        used = sum(one.used for one in stock)
        return max(0, min(self.images - used, sum(one.fresh + one.doubted for one in stock)))

    def is_fresh(self, name: bytes) -> bool:
        """Return True if a lot is there and was never taken."""
        found = self._marks.state(name)
        return found is not None and found[0] in (FRESH, DOUBTED) and self._path(name).exists()

    def owner(self, name: bytes) -> str:
        """The client that a lot was dealt for."""
        found = self._marks.state(name)
        return "" if found is None else found[1]

    def take(self, name: bytes) -> Lot:
        """Take one lot out for good; see `take_all`."""
        return self.take_all([name])[0]

    def take_all(self, names: Sequence[bytes]) -> list[Lot]:
        """Take lots out for good: they are marked on the disk, all at once, before they are read.

        Raises:
            RefusalError: One is spent or missing, or its owner has asked as many images as were dealt.
            EngineError: One is damaged.
        """
        self._marks.spend(names, limited=self._party == "server")
        lots = [self._read(name) for name in names]
        for name in names:
            _erase(self._path(name))
        return lots

    def discard(self, name: bytes) -> None:
        """Record that a lot, which is spent, was unusable."""
        self._marks.discard(name)

    def doubt(self, names: Sequence[bytes]) -> None:
        """Put lots aside that the server calls spent: it may be wrong, so they are kept."""
        self._marks.doubt(names)

    def check(self, images: int) -> None:
        """Refuse more images than are left of those that were dealt, before any lot is spent."""
        left = self.left()
        if images > left:
            raise EngineError(f"{images} images, and the pool is good for {left} more: {self._cure}, or ask fewer")

    def get(self, images: int) -> list[Lot]:
        """Take the first lots that are left, one for each image."""
        names = self.names()
        if len(names) < images:
            raise EngineError(f"{images} images wanting, and {len(names)} lots left in the pool: {self._cure}")
        return self.take_all(names[:images])

    def expect(self, images: int) -> None:
        """Refuse to receive a lot: there is no dealer to ask."""
        raise RefusalError("the client asks for lots and this server has a pool: give the client its own with --pool")

    def dealt_bytes(self, lot: Lot) -> int:
        """All bytes of a lot, as no dealer counts them any more; where there was none, nobody dealt it."""
        if not self.dealt:
            return 0
        return len(lot.id) + len(lot.seed) + sum(piece.nbytes for piece in lot.pieces.values())

    @property
    def _cure(self) -> str:
        return "deal anew" if self.dealt else "make more with private prepare"

    def _path(self, name: bytes) -> Path:
        return self.folder / LOTS / name.hex()

    def _read(self, name: bytes) -> Lot:
        return read_lot(self._path(name), self._schedule, self._party)


def read_lot(path: Path, steps: Schedule, party: Holder) -> Lot:
    """Read what `write_lot` wrote.

    Raises:
        EngineError: It is damaged, or not there.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise EngineError(f"lot {path} cannot be read ({error.strerror}): it will not be used; ask again") from error
    content, name = data[:-_CHECK_BYTES], bytes.fromhex(path.name)
    whole = len(content) == steps.lot_bytes(1, party)
    if (
        not whole
        or data[-_CHECK_BYTES:].tobytes() != content_digest(content.data)
        or content[:ID_BYTES].tobytes() != name
    ):
        raise EngineError(f"lot {path} is damaged: it will not be used; ask again")
    pieces, begin = {}, ID_BYTES + SEED_BYTES
    for piece, size in steps.dealt_bytes(1, party).items():
        pieces[piece] = content[begin : begin + size].copy()  # its numbers aligned
        begin += size
    return Lot(name, content[ID_BYTES : ID_BYTES + SEED_BYTES].tobytes(), 1, pieces)


def check_party(folder: Path, party: Holder) -> dict[str, str]:
    """Read the description of a pool, and check that it is one of this party.

    Raises:
        EngineError: It is no pool, or of the other party.
    """
    about = _about(folder)
    if about.get("party") != party:
        raise EngineError(f"{folder} is the pool of the {about.get('party')}: the {party} needs the other one")
    return about


def pool_engine(about: Mapping[str, str]) -> str:
    """The engine that a pool is for."""
    return about.get("engine", DEALT)


def pools_in(folder: Path, party: Holder, engine: str | None = None) -> list[tuple[Path, dict[str, str]]]:
    """The finished pools of a party in a folder, or the folder itself if it is one, with their descriptions.

    Args:
        folder: The folder.
        party: The party.
        engine: The engine that they must be for; None for any.

    Raises:
        EngineError: There is none.
    """
    if (folder / ABOUT).exists() or not folder.is_dir():
        about = check_party(folder, party)
        if engine not in (None, pool_engine(about)):
            raise EngineError(f"{folder} is a pool of engine {pool_engine(about)}, not {engine}: name that engine")
        return [(folder, about)]
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # it is being moved here
            continue
        with suppress(EngineError):
            about = check_party(path, party)
            if engine in (None, pool_engine(about)):
                found.append((path, about))
    if not found:
        cure = "prepare" if engine == MADE else "deal"
        raise EngineError(
            f"there is no finished pool of the {party} in {folder}: make one with deepshare private {cure}"
        )
    return found


def _about(folder: Path) -> dict[str, str]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(NO_POOL.format(folder)) from error
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder / ABOUT} is damaged: deal anew") from error
    if not isinstance(about, dict) or about.get("version") not in (VERSION, EARLIER):
        raise EngineError(f"{folder} is a pool of another version: deal with the same deepshare")
    if pool_engine(about) == MADE and about.get("form") != MADE_FORM:
        raise EngineError(f"{folder} was made by another deepshare: prepare a pool with this one, in another folder")
    return about


def content_digest(content: bytes | bytearray | memoryview) -> bytes:
    """A digest that shows whether a file is whole."""
    return hashlib.blake2b(content, digest_size=_CHECK_BYTES).digest()


class _Eraser:
    """Overwrites files and deletes them, in a thread of its own: an inference does not wait for the disk."""

    def __init__(self) -> None:
        self._paths: SimpleQueue[Path] = SimpleQueue()
        self._started = threading.Lock()
        self._running = False

    def __call__(self, path: Path) -> None:
        with self._started:
            if not self._running:
                threading.Thread(target=self._run, name="eraser", daemon=True).start()
                self._running = True
        self._paths.put(path)

    def _run(self) -> None:
        while True:
            with suppress(OSError):  # it is gone, or its pool is: the next start tries again
                overwrite(self._paths.get())


_erase = _Eraser()


def finished(lots: Path) -> list[Path]:
    """Lots in a folder, without what is being written or deleted."""
    return [path for path in lots.iterdir() if not path.name.startswith(".")] if lots.exists() else []


def clear(lots: Path) -> None:
    """Delete what a process that was killed has left in a folder of lots; nobody else may write there."""
    for path in lots.glob(".*"):
        overwrite(path)


def overwrite(path: Path) -> None:
    """Overwrite a file with zeros, on the disk itself, and delete it."""
    with path.open("r+b") as file:
        left = file.seek(0, os.SEEK_END)
        file.seek(0)
        while left > 0:
            left -= file.write(bytes(min(left, 1 << 20)))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
