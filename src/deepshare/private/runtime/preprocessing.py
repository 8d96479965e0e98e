"""The interface of engines that do their offline phase in advance: pools, and servers of many clients."""

import socket
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from deepshare.private.ir.program import Program
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.transport.channel import Channel


class Session(Protocol):
    """The server's part for one client, on the connection that it came on, for as long as it stays."""

    def answer(self, request: Mapping[str, Any]) -> Generator[None, None, Outcome]:
        """Answer a request; yields where the client may take its time, until it sends something."""


class Host(Protocol):
    """The server's side of an engine that answers many clients at once."""

    @property
    def dealings(self) -> list[str]:
        """Ids of the dealings that it has pools of."""

    def channel(self, connection: socket.socket) -> Channel:
        """The channel of a client's connection."""

    def admit(self, request: Mapping[str, Any], name: str) -> str:
        """Check a request before anything is done for it.

        Args:
            request: The request.
            name: The name in the client's certificate; "" where there is none.

        Returns:
            The owner of what it will use up.

        Raises:
            RefusalError: It cannot be answered.
        """

    def session(self, channel: Channel, request: Mapping[str, Any], owner: str) -> Session:
        """Begin a client's session with its first request, which was admitted for this owner."""

    def admit_making(self, request: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Check a client's request to make lots.

        Args:
            request: The request.
            name: The name in the client's certificate; "" where there is none.

        Returns:
            Extras of the task that takes part in it.

        Raises:
            RefusalError: It cannot be done.
        """

    def levels(self) -> list[tuple[str, str, int, int]]:
        """For each pool and owner its name, the owner, how many images are left, and how many were dealt."""

    def refresh(self) -> list[str]:
        """Look for pools that were added since, or are gone; returns lines for the log."""

    def warnings(self) -> list[str]:
        """Warnings about pools, such as that one is low; each once."""


class HostedClient(Protocol):
    """The client's side of an engine that answers many clients at once, in this process."""

    @property
    def limit(self) -> float:
        """The largest number of an image, either way."""

    def check(self, images: Tensor) -> None:
        """Refuse images that cannot be asked, before anything is sent.

        Raises:
            EngineError: Says why.
        """

    def close(self) -> None:
        """Close its pool."""

    def left(self) -> int:
        """Number of images that its pool is good for."""

    def low(self) -> str:
        """A warning if its pool is low; else empty."""

    def prepare(self, channel: Channel, count: int) -> None:
        """Do everything for `count` images that needs no image."""

    def infer(self, images: Tensor) -> None:
        """Send as many images as were prepared; no message depends on the logits."""

    def outcome(self) -> Outcome:
        """Logits and cost of all images since the last outcome.

        Raises:
            EngineError: The logits cannot be right.
        """


class Dealt(NamedTuple):
    """Outcome of a dealing: its spare lots and its bound.

    Attributes:
        spare: Lots of each client beyond one per image, as some turn out to be unusable.
        distance: Bound of the statistical distance between the server's views of any two images.
    """

    spare: int
    distance: float


class Prepared(NamedTuple):
    """Lots that two parties have made.

    Attributes:
        images: How many images the lots are good for.
        distance: Bound of the statistical distance between the server's views of any two images.
    """

    images: int
    distance: float


class PoolLevel(Protocol):
    """Lots that are left to one client in one pool."""

    @property
    def warning(self) -> str:
        """A line if it is low, or nothing."""

    def cells(self) -> tuple[str, ...]:
        """As a row of a table: pool, party, client, images left, dealt, used, unusable, put aside, a day, days left."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""


class Preprocessing(Protocol):
    """The offline phase in advance, by a dealer or by the two parties: correlated randomness in pools on disk.

    Attributes:
        options: The engine's options where parties use pools.
    """

    options: Mapping[str, str]

    def write_outline(
        self, path: Path, program: Program, samples: Tensor | None, options: Mapping[str, str] | None = None
    ) -> None:
        """Write the public description of a network that a dealer works from.

        Args:
            path: File to write.
            program: The network, with its hidden numbers.
            samples: Images to calibrate on; None for synthetic ones.
            options: Options of the engine that an outline depends on, such as {"comparison_bits": "calibrated"}.

        Raises:
            UnsupportedModelError: The network does something that the engine cannot do.
            EngineError: The file cannot be written.
        """

    def deal(
        self,
        outline: Path,
        folder: Path,
        *,
        images: int,
        clients: int,
        on_progress: Callable[[int, int], None],
        owners: Sequence[str] = (),
    ) -> Dealt:
        """Write the pools of a server and its clients.

        Args:
            outline: File of `write_outline`.
            folder: Folder for the pools.
            images: Number of images for each client.
            clients: Number of clients.
            on_progress: Called after each lot with how many there are, and of how many.
            owners: Names in the clients' certificates, in their order: the server refuses their lots from others.

        Raises:
            EngineError: The outline cannot be read, or the pools cannot be written.
        """

    def check_pool(self, folder: Path, role: Literal["server", "client"]) -> None:
        """Refuse a folder that is no pool of this party.

        Raises:
            EngineError: Says what it is.
        """

    def networks(self, folder: Path, role: Literal["server", "client"]) -> set[str]:
        """Digests of the outlines that a pool, or the pools in a folder, were dealt for.

        Raises:
            EngineError: There is none of this party.
        """

    def dealings(self, folder: Path) -> set[str]:
        """Ids of the dealings of a client's pool, or of the pools in a folder: of those with lots left, if there are.

        Raises:
            EngineError: There is none.
        """

    def levels(self, folder: Path) -> Sequence[PoolLevel]:
        """Levels of a pool, or of all pools of a folder, of either party.

        Raises:
            EngineError: There is none.
        """

    def move_pool(self, new: Path, folder: Path) -> Path:
        """Move a finished pool into a folder of pools; a server that uses the folder finds all of it, or nothing.

        Returns:
            Where it is now.

        Raises:
            EngineError: It is no pool, or cannot be moved there.
        """

    def host(self, program: Program, pools: Sequence[Path]) -> Host:
        """The server's side: answers many clients at once with pools, or folders of pools.

        Raises:
            EngineError: Nobody could be answered.
        """

    def client(self, program: Program, pool: Path, dealings: Collection[str]) -> HostedClient:
        """The client's side, with its pool or a folder of pools; of several it takes one of these dealings.

        Raises:
            EngineError: The pool is for something else.
        """

    def make(
        self, program: Program, folder: Path, channel: Channel, images: int, on_progress: Callable[[float, str], None]
    ) -> Prepared:
        """Make a client's pool together with a server, where there is no dealer.

        Args:
            program: The outline.
            folder: The client's pool, which may be there already.
            channel: A connection to the server, whose offer has arrived.
            images: Number of images.
            on_progress: Called with the share of the work that is done, and the layer at work.

        Raises:
            EngineError: Lots are dealt, or either party failed.
            ConnectionError: The server is gone.
        """
