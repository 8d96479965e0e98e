"""`deepshare private pool`: what pools hold, and adding one to a folder of pools."""

import json
from pathlib import Path

from cyclopts import App

from deepshare.cli.options import Json

pool = App(name="pool", help="Pools of gateshare: what is left, and adding more.")


@pool.command
def status(folder: Path, /, *, as_json: Json = False) -> None:
    """Show what is left in a pool, or in all pools of a folder, on either side.

    Args:
        folder: A pool, or a folder of pools.
    """
    from deepshare.private.engines.gateshare.preprocessing.stock import levels
    from deepshare.text import table

    rows = levels(folder)
    if as_json:
        print(json.dumps([row.to_dict() for row in rows]))
        return
    header = ("pool", "party", "client", "images left", "dealt", "used", "unusable", "put aside", "a day", "days left")
    print(table(header, [row.cells() for row in rows], "<<<>>>>>>>"))
    for row in rows:
        if row.warning:
            print(row.warning)


@pool.command
def add(folder: Path, new: Path, /) -> None:
    """Move a finished pool into a folder of pools, from which a running server takes it within seconds.

    A pool is moved and never copied: of two copies, lots would be used twice.

    Args:
        folder: Folder of pools that was given to serve or ask.
        new: The pool.
    """
    from deepshare.private.engines.gateshare.preprocessing.stock import move_pool

    print(f"{move_pool(new, folder)} is there")
