"""The client's side of making lots with a server, in advance."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from deepshare.errors import EngineError
from deepshare.private.remote.client import ModelClient, Server, when_free
from deepshare.private.runtime.engine import check_installed, find_engine
from deepshare.private.runtime.preprocessing import Prepared
from deepshare.private.transport.channel import PeerBusyError
from deepshare.private.transport.tls import tls_of

OnProgress = Callable[[float, str, float], None]
MADE = "gateshare-2pc"  # whose pools the two parties make


def prepare(
    server: str,
    *,
    pool: str | Path,
    images: int = 8,
    network: str | None = None,
    tls: str | Path | None = None,
    insecure: bool = False,
    on_progress: OnProgress = lambda share, layer, left: None,
) -> Prepared:
    """Make the randomness of gateshare-2pc for a number of images, together with a server and nobody else.

    Interrupted on either side, the same call goes on to the same number of images.

    Args:
        server: HOST:PORT of `serve` with engine gateshare-2pc and a pool.
        pool: Folder for this party's pool; it may hold one of this server already.
        images: Number of images.
        network: Name of the network, if the server has several.
        tls: Folder with the certificates of this party.
        insecure: Ask another machine without TLS: everyone between can read and change what is sent.
        on_progress: Called with the share of the work that is done, the layer at work, and the seconds left, NaN if
            unknown.

    Returns:
        How many images the new lots are good for, and the bound of the statistical distance between the server's views
        of any two images.

    Raises:
        EngineError: The server is not there, or deals otherwise, or either party failed.
    """
    check_installed(find_engine(MADE))
    asked = Server(
        address=server,
        tls=None if tls is None else tls_of(Path(tls)),
        engine=MADE,
        network=network,
        insecure=insecure,
    )
    on_progress(0.0, f"connecting to {server}", float("nan"))
    return make_lots(asked, Path(pool).absolute(), images, on_progress)


def make_lots(server: Server, pool: Path, images: int, on_progress: OnProgress) -> Prepared:
    """Make lots for so many images together with a server; interrupted, the same call goes on to the same number.

    A server makes lots with one client at a time. Others wait for their turn.

    Args:
        server: A server whose engine makes lots with its clients.
        pool: This party's pool; made if it is not there.
        images: How many.
        on_progress: Called with the share of the work that is done, the layer at work, and the seconds left.

    Raises:
        EngineError: The server is not there, or deals otherwise, or either party failed.
    """
    if images < 1:
        raise EngineError(f"{images} images: make lots for at least one")
    clock = _Clock(on_progress)
    while True:
        client = when_free(lambda: ModelClient(server))
        try:
            preprocessing = client.offer.engine.preprocessing
            if preprocessing is None or not client.offer.uses_pools:
                raise EngineError(
                    f"{server.address} makes no lots in advance: start it with --engine gateshare-2pc --pool FOLDER"
                )
            with client.channel.reporting_failure("its part of making lots failed"):
                return preprocessing.make(client.offer.program, pool, client.channel, images, clock)
        except PeerBusyError:  # it makes lots with others, and what was made here is kept
            clock.wait()
        except ConnectionError as error:
            raise EngineError(f"{error}: what both parties have is kept; prepare again to go on") from error
        finally:
            client.close()


class _Clock:
    """Tells the time left from the share that is done since it began."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress, self._begun, self._first = on_progress, time.monotonic(), -1.0
        self._share = 0.0

    def wait(self) -> None:
        """Tell that it is the turn of others, and wait a little."""
        self._on_progress(self._share, "the server makes lots with another client", float("nan"))
        self._first = -1.0
        time.sleep(random.uniform(0.5, 1.0))

    def __call__(self, share: float, layer: str) -> None:
        now, self._share = time.monotonic(), share
        if self._first < 0 or share <= self._first:  # what was done before, and session setup, tell nothing about time
            self._first, self._begun = share, now
        done = share - self._first
        left = (now - self._begun) * (1 - share) / done if done > 0 else float("nan")
        self._on_progress(share, layer, left)
