"""Asking a server once, in one call."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepshare.errors import EngineError
from deepshare.private.cost import Result
from deepshare.private.remote.client import ModelClient, Offer, Server, ask_when_free
from deepshare.private.remote.connection import Images, read_images
from deepshare.private.transport.tls import tls_of

if TYPE_CHECKING:
    from deepshare.sharing.plan import Plan

LOGGER = logging.getLogger("deepshare.client")
MADE = "gateshare-2pc"  # whose pools the two parties make


def ask(
    images: Images,
    server: str,
    *,
    engine: str | None = None,
    network: str | None = None,
    tls: str | Path | None = None,
    pool: str | Path | None = None,
    insecure: bool = False,
    fit: bool = False,
    plan: "Plan | None" = None,
    see: Callable[[Offer], None] | None = None,
    warn: Callable[[str], None] = LOGGER.warning,
) -> Result:
    """Classify images with a server, without revealing them. `connect` keeps the session for further images.

    Args:
        images: (N, C, H, W), normalised; or pictures, by their paths.
        server: HOST:PORT of `serve`.
        engine: Engine of the server; a server with another one is refused. With a pool it is that of the pool.
        network: Name of the network, if the server has several.
        tls: Folder with the certificates of this party.
        pool: This party's pool, or a folder of pools.
        insecure: Ask another machine without TLS: everyone between can read and change what is sent.
        fit: Resize and crop pictures of another size.
        plan: A server that shares its gates otherwise is refused.
        see: Called with the server's offer before anything is sent; what it raises ends the call.
        warn: Called with a line if the pool is low.

    Returns:
        Logits, or the classes that the server gives instead; their cost; the names of the classes.

    Raises:
        EngineError: The server is not there or offers something else, or either party failed.
        DataError: A picture cannot be read, or has another size.
        PlanMismatchError: The server has another plan.
    """
    asked = Server(
        address=server,
        tls=None if tls is None else tls_of(Path(tls)),
        pool=None if pool is None else Path(pool).absolute(),
        engine=engine if pool is None else _engine_of(Path(pool), engine),
        network=network,
        insecure=insecure,
    )

    def use(client: ModelClient) -> Result:
        offer = client.offer
        if plan is not None:
            from deepshare.private.api import check_plan  # with torch's slow parts, which few clients need

            check_plan(offer.program, plan)
        batch = read_images(offer.about, images, fit=fit)
        client.check(batch)
        if see is not None:
            see(offer)
        result = client.ask(batch)
        if offer.uses_pools and (warning := client.low()):
            warn(warning)
        return result

    return ask_when_free(asked, use)


def _engine_of(pool: Path, engine: str | None) -> str:
    """The engine of a client's pool, which must be the one that was asked for."""
    from deepshare.private.engines.gateshare.preprocessing.pool import pool_engine, pools_in

    found = pool_engine(pools_in(pool, "client", engine if engine == MADE else None)[0][1])
    if engine not in (None, found):
        raise EngineError(f"{pool} is a pool of engine {found}, not {engine}: name that engine, or none")
    return found
