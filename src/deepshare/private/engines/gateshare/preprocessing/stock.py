"""The stock of pools: what is left in them, how long it lasts, and adding one to a folder of them."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from secrets import token_hex
from typing import Any

from filelock import FileLock, Timeout

from deepshare.errors import EngineError
from deepshare.files import sync_folder, sync_tree, write_atomically
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing.marks import Marks, Stock
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, NO_POOL, pools_in

LOW = (0.2, 0.05)
"""Shares of a pool at which to warn."""
MOVING = ".moving"
"""File in a pool that goes to another disk; it names the copy, which is that of no other pool."""
_LOCK = ".moving.lock"


@dataclass(frozen=True)
class Level:
    """The stock of one client in one pool.

    Attributes:
        pool: Name of the pool's folder.
        party: Whose pool it is.
        dealing: Id of its dealing.
        stock: The counts.
        left: Images that can still be asked.
        dealt: Images that were dealt.
    """

    pool: str
    party: str
    dealing: str
    stock: Stock
    left: int
    dealt: int

    @property
    def days(self) -> float | None:
        """Days that it lasts at the rate of the last week; None if nothing was used."""
        return self.left / self.stock.rate if self.stock.rate else None

    @property
    def warning(self) -> str:
        """A line if it is low, or nothing."""
        whose = f" for {self.stock.owner}" if self.stock.owner else ""
        said = f"pool {self.pool}{whose} has {self.promised:,} of {self.dealt:,} images left"
        return f"{said}, {self.low:.0%} or less: make more" if self.low < 1 else ""

    @property
    def low(self) -> float:
        """The smallest of `LOW` that it has fallen to; 1 if none."""
        return min([share for share in LOW if self.promised <= share * self.dealt], default=1.0)

    @property
    def promised(self) -> int:
        """Images that can be asked with what is here, and with what a dealer that runs has not dealt yet."""
        stock = self.stock
        fed = stock.images is not None and stock.lots < stock.images
        return self.dealt - stock.used if fed else self.left

    def cells(self) -> tuple[str, ...]:
        """As a row of a table."""
        stock = self.stock
        counts = (self.left, self.dealt, stock.used, stock.unusable, stock.doubted)
        last = "" if self.days is None else f"{self.days:.1f}"
        return (self.pool, self.party, stock.owner or "-", *(f"{n:,}" for n in counts), f"{stock.rate:.1f}", last)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self.stock) | {
            "pool": self.pool,
            "party": self.party,
            "left": self.left,
            "dealt": self.dealt,
            "days": self.days,
        }


def levels(folder: Path) -> list[Level]:
    """Stocks of a pool, or of all pools in a folder, of either party.

    Raises:
        EngineError: There is none.
    """
    parties: tuple[Holder, Holder] = ("server", "client")
    pools: list[tuple[Path, Holder, dict[str, str]]] = []
    for party in parties:
        with suppress(EngineError):
            pools += [(path, party, about) for path, about in pools_in(folder, party)]
    if not pools:
        raise EngineError(NO_POOL.format(folder))
    return [level for one in pools for level in _of(*one)]


def _of(path: Path, party: Holder, about: dict[str, Any]) -> Iterator[Level]:
    dealing = str(about.get("session", ""))
    with closing(Marks(path)) as marks:
        stocks = marks.stock()
    for stock in stocks:
        if party == "server" or stock.images is not None or not about.get("images"):
            yield Level(path.name, party, dealing, stock, stock.left, stock.dealt)
        else:  # a client's pool of an earlier version
            images = int(about.get("images", 0))
            left = max(0, min(images - stock.used, stock.fresh + stock.doubted))
            yield Level(path.name, party, dealing, stock, left, images)


def move_pool(new: Path, folder: Path) -> Path:
    """Move a finished pool into a folder of pools; whoever looks there sees all of it, or nothing.

    To another disk it is copied under a hidden name. It is no pool any more over here before it becomes one over there,
    and all of it is on the disk by then. Cut short, the same call goes on.

    Raises:
        EngineError: It is no pool, or the folder is one itself, or it is being moved already.
    """
    if not (new / ABOUT).is_file() and not (new / MOVING).is_file():
        raise EngineError(NO_POOL.format(new))
    if (folder / ABOUT).exists():
        raise EngineError(f"{folder} is a pool itself: give a folder of pools, and the same one to serve --pool")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = _free(folder, new)
        if not (new / ABOUT).is_file() or not _renamed(new, target):
            with FileLock(new / _LOCK, timeout=0):
                return _moved_to_another_disk(new, folder)
        sync_folder(new.parent)
        sync_folder(folder)
    except Timeout:
        raise EngineError(f"{new} is being moved already: let that end") from None
    except OSError as error:
        raise EngineError(f"{new} cannot be moved to {folder} ({error.strerror}): give another folder") from error
    return target


def _moved_to_another_disk(new: Path, folder: Path) -> Path:
    if not (new / MOVING).exists():
        write_atomically(new / MOVING, token_hex(8).encode(), 0o600)
    token = (new / MOVING).read_text()
    hidden = folder / f".{token}.incoming"
    if (new / ABOUT).is_file():
        if hidden.exists():  # it need not be whole
            shutil.rmtree(hidden)
        shutil.copytree(new, hidden, ignore=shutil.ignore_patterns(_LOCK))
        sync_tree(hidden)
        sync_folder(folder)
        (new / ABOUT).unlink()
        sync_folder(new)
    if hidden.exists():
        hidden.rename(_free(folder, new))
        sync_folder(folder)
    copies = [path.parent for path in folder.glob(f"*/{MOVING}") if path.read_text() == token]
    if not copies:
        raise EngineError(f"{new} was being moved to another folder: give that one")
    for path in new.iterdir():  # first what is secret, while it can be told what all this is
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (MOVING, _LOCK):
            path.unlink()
    shutil.rmtree(new)
    (copies[0] / MOVING).unlink()
    return copies[0]


def _renamed(new: Path, target: Path) -> bool:
    """Rename a folder; returns whether it is on the same disk."""
    try:
        new.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _free(folder: Path, new: Path) -> Path:
    """Where a pool goes: the pools of several dealings are all named `server`."""
    name = new.resolve().name
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())
