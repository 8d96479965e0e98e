"""The stock of pools: what is left in them, how long it lasts, and adding one to a folder of them."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepshare.errors import EngineError
from deepshare.files import sync_folder, sync_tree
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing.marks import Marks, Stock
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, NO_POOL, pools_in

LOW = (0.2, 0.05)
"""Shares of a pool at which to warn."""


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
        EngineError: It is no pool, or the folder is one itself, or another pool of that name is being moved there.
    """
    hidden = folder / f".{new.resolve().name}.incoming"
    if not (new / ABOUT).is_file() and not ((hidden / ABOUT).is_file() and new.is_dir()):
        raise EngineError(NO_POOL.format(new))
    if (folder / ABOUT).exists():
        raise EngineError(f"{folder} is a pool itself: give a folder of pools, and the same one to serve --pool")
    # The pools of several dealings are all named `server`.
    target = next(path for path in _names(folder, new.resolve().name) if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (new / ABOUT).is_file() and _renamed(new, target):
            sync_folder(new.parent)
        else:
            if (new / ABOUT).is_file():
                shutil.copytree(new, hidden)
                sync_tree(hidden)
                sync_folder(folder)
                (new / ABOUT).unlink()
                sync_folder(new)
            hidden.rename(target)
        sync_folder(folder)
        if new.exists():
            shutil.rmtree(new)
    except FileExistsError as error:
        raise EngineError(f"{new} was not moved: another pool is being moved, or delete {hidden}") from error
    except OSError as error:
        raise EngineError(f"{new} cannot be moved to {folder} ({error.strerror}): give another folder") from error
    return target


def _renamed(new: Path, target: Path) -> bool:
    """Rename a folder; returns whether it is on the same disk."""
    try:
        new.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _names(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    number = 2
    while True:
        yield folder / f"{name}-{number}"
        number += 1
