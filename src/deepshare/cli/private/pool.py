"""`deepshare private pool` and `prepare`: show, add and fill pools, and make one without a dealer."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from deepshare.cli.options import Flag, Json, TlsFolder, importing
from deepshare.cli.private.show import note, show_distance, warn
from deepshare.errors import EngineError

MADE = "gateshare-2pc"
"""The engine whose pools the two parties make."""


pool = App(name="pool", help="Pools of gateshare: what is left, and adding more.")


@pool.command
def status(folder: Path, /, *, as_json: Json = False) -> None:
    """Show what is left in a pool, or in all pools of a folder, on either side.

    Args:
        folder: A pool, or a folder of pools.
    """
    from deepshare.private.runtime.engine import engine_with_preprocessing
    from deepshare.text import table

    rows = engine_with_preprocessing()[1].levels(folder)
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
    from deepshare.private.runtime.engine import engine_with_preprocessing

    print(f"{engine_with_preprocessing()[1].move_pool(new, folder)} is there")


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
    from deepshare.private.remote.refill import DealerGoneError, Refill
    from deepshare.private.transport.tls import tls_of

    if not 0 < every < math.inf:
        raise EngineError(f"--every {every:g}: give seconds, more than 0")
    end_as_interrupted()
    certificates, known = tls_of(tls), False
    with suppress(KeyboardInterrupt):
        while True:
            try:
                with closing(Refill(folder, "server" if server else "client", dealer, certificates)) as refill:
                    note(f"{folder} is filled from {dealer}" if not known else f"{dealer} is back")
                    known = True
                    came = 0
                    while count := refill.fill():
                        came += count
                    if once:
                        none = (
                            ": the pool is full, the other party has to ask the dealer first, or all is dealt that the "
                            "dealer's limits allow"
                        )
                        note(f"{came:,} lots came{'' if came else none}")
                        return
                    refill.keep_full(every)
            except DealerGoneError as error:
                if once or not known:
                    raise
                note(f"{error}; trying again every {every:g} s")
                time.sleep(every)


def prepare(
    *,
    server: str,
    pool: Annotated[Path, Parameter(help="Folder for the client's pool; it may hold one of this server already.")],
    images: int = 8,
    network: str | None = None,
    tls: TlsFolder = None,
    insecure: Flag = False,
) -> None:
    """Make the randomness of gateshare-2pc for a number of images, together with a server and nobody else.

    The server is one of deepshare private serve --engine gateshare-2pc --pool FOLDER. It takes some seconds for an
    image. Interrupted on either side, the same command goes on to the same number of images, and those that it made
    before count. Then private ask uses the pool as a dealer's.

    Args:
        server: HOST:PORT of deepshare private serve.
        images: Number of images.
        network: Name of the network, if the server has several.
        insecure: Ask another machine without TLS: everyone between can read and change what is sent.
    """
    with importing():
        from deepshare.private.remote.prepare import prepare as prepare_pool
        from deepshare.private.runtime.engine import check_installed, find_engine

    engine = find_engine(MADE)
    check_installed(engine)
    warn(engine)
    with progress() as on_progress:
        made, distance = prepare_pool(
            server, pool=pool, images=images, network=network, tls=tls, insecure=insecure, on_progress=on_progress
        )
    print(f"{pool} is good for {made:,} more images: ask with --pool {pool}")
    if distance:  # nothing is truncated in a network without gates
        show_distance(distance, made, f"{made:,} images")


@contextmanager
def progress() -> Iterator[Callable[[float, str, float], None]]:
    """Show the share of the work that is done, the layer and the time left: a bar, or a line for each tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    def words(layer: str, left: float) -> str:
        return f"{layer}, {left // 60:.0f}:{left % 60:02.0f} left" if left == left else layer

    if not sys.stderr.isatty():
        tenths, last = 0, ""

        def line(share: float, layer: str, left: float) -> None:
            nonlocal tenths, last
            waits = left != left and layer != last
            if int(share * 10) > tenths or waits:
                tenths, last = int(share * 10), layer
                note(f"{share:.0%}  {words(layer, left)}")

        yield line
        return
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%  {task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda share, layer, left: bars.update(task, completed=share, description=words(layer, left))


def end_as_interrupted() -> None:
    """End on SIGTERM as on Ctrl-C; the first process of a container would ignore it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
