"""A client that keeps its session and prepares the next image while it waits, so that one costs its online time."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.cost import Cost, Layer, Result
from deepshare.private.remote.client import LostError, ModelClient, Server, when_free
from deepshare.private.transport.channel import PeerBusyError, Watch
from deepshare.private.transport.tls import tls_of

LOGGER = logging.getLogger("deepshare.client")
LARGEST_BATCH = 256

Images = Tensor | str | Path | Sequence[str | Path]


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
            try:
                return self._ask(batch, watch)
            except (PeerBusyError, LostError):  # it needed the place, or was started anew
                self._drop()
                return self._ask(batch, watch)
            except BaseException:
                self._drop()
                raise

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

    def _ask(self, images: Tensor, watch: Watch | None) -> Result:
        client = self._connected()
        client.check(images)
        first = min(client.prepared, len(images))
        parts = [images[:first]] if first else []
        parts += images[first:].split(LARGEST_BATCH) if len(images) > first else []
        results = [client.ask(part, watch) for part in parts]
        self._prepare()
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
