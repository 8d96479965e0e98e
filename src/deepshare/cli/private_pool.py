"""`deepshare private pool`: what pools hold, and adding one to a folder of pools."""

import json
from pathlib import Path

from cyclopts import App

from deepshare.cli.options import Flag, Json

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


@pool.command
def fill(
    folder: Path,
    /,
    *,
    dealer: str,
    tls: Path,
    server: Flag = False,
    every: float = 5.0,
    once: Flag = False,
) -> None:
    """Fill a pool from a dealer that runs (private dealer), while serve or ask use it.

    Args:
        folder: The pool; made if it is not there.
        dealer: HOST:PORT of deepshare private dealer.
        tls: Folder with the certificates of this party.
        server: Fill the pool of the server; by default it is a client's.
        every: Seconds between questions.
        once: End when the dealer has nothing more; by default go on until interrupted.
    """
    from deepshare.private.remote.refill import Refill
    from deepshare.private.transport.tls import tls_of

    refill = Refill(folder, "server" if server else "client", dealer, tls_of(tls))
    try:
        while refill.fill():
            pass
        if not once:
            refill.keep_full(every)
    except KeyboardInterrupt:
        pass
    finally:
        refill.close()
