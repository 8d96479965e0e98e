"""The client's side in one call each: ask once, or keep a session for many images.

A connection prepares the next image while it waits, so that one costs its online time.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.cost import Cost, Layer, Result
from deepshare.private.remote.client import LostError, ModelClient, Offer, Server, ask_when_free, when_free
from deepshare.private.runtime.outcome import AnswerError
from deepshare.private.transport.channel import PeerBusyError, Watch
from deepshare.private.transport.tls import tls_of

if TYPE_CHECKING:
    from deepshare.sharing.plan import Plan

LOGGER = logging.getLogger("deepshare.client")
LARGEST_BATCH = 256
MADE = "gateshare-2pc"  # whose pools the two parties make

Images = Tensor | str | Path | Sequence[str | Path]


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


def connect(
    server: str,
    *,
    pool: str | Path,
    tls: str | Path | None = None,
    network: str | None = None,
    ahead: bool = True,
    insecure: bool = False,
) -> "Connection":
    """Connect to a server of engine gateshare or gateshare-2pc, for many images over time.

    Args:
        server: HOST:PORT of deepshare private serve.
        pool: This party's pool, or a folder of pools.
        tls: Folder with the certificates of this party.
        network: Name of the network, if the server has several.
        ahead: Whether to prepare an image before it is there. A lot that is prepared and not used is lost.
        insecure: Whether to ask another machine without TLS.

    Raises:
        EngineError: The server is not there, or offers something else than the pool was dealt for.
    """
    certificates = None if tls is None else tls_of(Path(tls))
    asked = Server(
        address=server,
        tls=certificates,
        pool=Path(pool).absolute(),
        network=network,
        insecure=insecure,
    )
    return Connection(asked, ahead=ahead)


class Connection:
    """A session with a server, which is begun anew when it is lost; for one thread after the other."""

    def __init__(self, server: Server, *, ahead: bool) -> None:
        self._server, self._ahead = server, ahead
        self._client: ModelClient | None = when_free(lambda: ModelClient(server))
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "deepshare-prepare")
        self._preparing: Future[None] | None = None
        self._about = self._client.offer.about
        self._outputs = self._client.offer.program.operations[-1].shape
        self._prepare()

    @property
    def about(self) -> About:
        """Description of the images that the server takes."""
        return self._about

    @property
    def classifies_pixels(self) -> bool:
        """Whether the network gives a class to every pixel."""
        return len(self._outputs) > 1

    def classify(self, images: Images, *, fit: bool = False) -> list[str]:
        """Classes of images.

        Args:
            images: (N, C, H, W), normalised; or pictures, by their paths.
            fit: Whether to resize and crop pictures of another size.

        Raises:
            EngineError: The images do not fit, or either party failed.
        """
        return [self.about.classes[index] for index in self.ask(images, fit=fit).classes[:, 0].tolist()]

    async def aclassify(self, images: Images, *, fit: bool = False) -> list[str]:
        """The same for asyncio, in a thread."""
        return await asyncio.to_thread(self.classify, images, fit=fit)

    def left(self) -> int:
        """Number of images that the pool is good for, the one that is prepared included."""
        with self._lock:
            client = self._connected()
            return client.left() + client.prepared

    def ask(self, images: Images, *, fit: bool = False, watch: Watch | None = None) -> Result:
        """Logits of images, or the classes that the server gives instead, and their cost; see `classify`.

        Args:
            images: As for `classify`.
            fit: As for `classify`.
            watch: Told of every frame between images and logits: whether it was sent, its layer, its bytes.
        """
        batch = read_images(self.about, images, fit=fit)
        with self._lock:
            for last in (False, True):
                client = self._connected()
                # The server is not to see what is wrong with images or logits: whatever it is, nobody hangs up, and all
                # that follows an answer follows.
                client.check(batch)
                try:
                    return self._ask(client, batch, watch)
                except AnswerError:
                    raise
                except BaseException as error:
                    self._drop()
                    # It needed the place, or was started anew.
                    if last or not isinstance(error, PeerBusyError | LostError):
                        raise
        raise AssertionError("neither asked nor refused")

    def close(self) -> None:
        """Hang up; the lot that was prepared for the next image is lost."""
        with self._lock:
            self._drop()
            self._worker.shutdown()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()

    def _connected(self) -> ModelClient:
        self._settle()
        if self._client is None:
            self._client = when_free(lambda: ModelClient(self._server), restarted=True)
        return self._client

    def _ask(self, client: ModelClient, images: Tensor, watch: Watch | None) -> Result:
        first = min(client.prepared, len(images))
        parts = [images[:first]] if first else []
        parts += images[first:].split(LARGEST_BATCH) if len(images) > first else []
        results: list[Result] = []
        wrong: list[AnswerError] = []
        for part in parts:
            try:
                results.append(client.ask(part, watch))
            except AnswerError as error:
                wrong.append(error)
        self._prepare()
        if wrong:
            raise wrong[0]
        return _joined(results)

    def _prepare(self) -> None:
        """Prepare one image, in another thread."""
        client = self._client
        if not self._ahead or client is None:
            return
        if warning := client.low():
            LOGGER.warning("%s", warning)
        if client.left():
            self._preparing = self._worker.submit(client.prepare, 1)

    def _settle(self) -> None:
        """Wait for what is being prepared; if that failed, the connection is of no use any more."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None and preparing.exception() is not None:
            self._drop()

    def _drop(self) -> None:
        client, self._client = self._client, None
        preparing, self._preparing = self._preparing, None
        if client is not None:
            client.channel.break_off()  # ends what is being prepared
        if preparing is not None:
            with suppress(EngineError, OSError):
                preparing.result()
        if client is not None:
            client.close()  # not before: the other thread has read the pool until now


def read_images(about: About, images: Images, *, fit: bool) -> Tensor:
    """Images as the network takes them, wherever they are."""
    if isinstance(images, Tensor):
        return images
    paths = [images] if isinstance(images, str | Path) else images
    return about.read([Path(path) for path in paths], fit=fit)


def _joined(results: list[Result]) -> Result:
    """Several results as one: images one after the other, costs in all."""
    first, *others = results
    cost: Cost = first.cost
    for other in (result.cost for result in others):
        layers = tuple(
            Layer(one.name, one.kind, one.part + two.part) for one, two in zip(cost.layers, other.layers, strict=True)
        )
        cost = replace(
            cost,
            images=cost.images + other.images,
            layers=layers,
            offline=cost.offline + other.offline,
            session=cost.session + other.session,
            seconds=cost.seconds + other.seconds,
        )
    return replace(first, answer=torch.cat([result.answer for result in results]), cost=cost)


def _engine_of(pool: Path, engine: str | None) -> str:
    """The engine of a client's pool, which must be the one that was asked for."""
    from deepshare.private.engines.gateshare.preprocessing.pool import pool_engine, pools_in

    found = pool_engine(pools_in(pool, "client", engine if engine == MADE else None)[0][1])
    if engine not in (None, found):
        raise EngineError(f"{pool} is a pool of engine {found}, not {engine}: name that engine, or none")
    return found
