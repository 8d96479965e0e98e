"""The interface of an engine: its tasks, its measurements, the registry of all engines, and checks that they share."""

import socket
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import Program, hidden_tensors
from deepshare.private.runtime import MODULES
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.tls import Tls

Role = Literal["server", "client", "dealer"]


@dataclass(frozen=True)
class Part:
    """Time, bytes and counts of one layer or of several, measured by one party or by both.

    Attributes:
        seconds: Wall-clock time; of both parties the slower.
        server_bytes: Payload that the server sent.
        client_bytes: Payload that the client sent.
        dealer_bytes: Payload that a dealer sent to both, or a trusted first party would have to.
        rounds: Exchanges that wait for the other party.
        comparisons: Gates that were computed.
        products: Products of two hidden numbers at activations; those within linear layers are not counted.
    """

    seconds: float = 0.0
    server_bytes: int = 0
    client_bytes: int = 0
    dealer_bytes: int = 0
    rounds: int = 0
    comparisons: int = 0
    products: int = 0

    def __add__(self, other: "Part") -> "Part":
        """One after the other."""
        return Part(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def beside(self, other: "Part") -> "Part":
        """The same work as both parties saw it: bytes add up, everything else was seen by both."""
        sent = ("server_bytes", "client_bytes", "dealer_bytes")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in vars(self)}
        return Part(**{name: sum(pair) if name in sent else max(pair) for name, pair in pairs.items()})


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One party's part of an inference.

    Attributes:
        role: The party.
        program: Whole for the server, an outline for everyone else.
        addresses: Of every party for this inference, as host:port.
        images: The client's, (N, C, H, W), normalised as the network takes them; None for everyone else.
        count: Number of images, known to all.
        tls: Certificates, for engines that encrypt; None on one machine.
        options: The engine's public options, the same for all parties, such as {"provider": "ttp"} of crypten.
        extras: This party's own values that only its engine knows, such as the pool and the token of gateshare.
    """

    role: Role
    program: Program
    addresses: Mapping[Role, str]
    images: Tensor | None = None
    count: int
    tls: Tls | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)


class AnswerError(EngineError):
    """What a client must not accept, its images or its logits, and which the server is not to learn."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One party's result of a task.

    Attributes:
        logits: The client's, or its classes where the program gives these alone; None for everyone else.
        layers: By number of the operation, with the bytes that this party sent.
        offline: Work that can be done before the images are there.
        session: Work that is done once and serves all further images.
        seconds: From the images to the logits, without offline and session.
        wrong: Why the client has no logits, although all went as always: the server is not to learn it.
    """

    logits: Tensor | None
    layers: Mapping[int, Part]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0
    wrong: str = ""

    def answer(self) -> Tensor:
        """The client's logits, or classes.

        Raises:
            AnswerError: They are refused, or the images were.
            EngineError: There are none.
        """
        if self.wrong:
            raise AnswerError(self.wrong)
        if self.logits is None:
            raise EngineError("the engine gave no logits")
        return self.logits


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
        """What is wrong with pools, such as that one is low; each once."""


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
    """What a dealing is good for.

    Attributes:
        spare: Lots of each client beyond one per image, as some turn out to be unusable.
        distance: Bound of the statistical distance between the server's views of any two images.
    """

    spare: int
    distance: float


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
        told: Callable[[int, int], None],
        owners: Sequence[str] = (),
    ) -> Dealt:
        """Write the pools of a server and its clients.

        Args:
            outline: File of `write_outline`.
            folder: Folder for the pools.
            images: Number of images for each client.
            clients: Number of clients.
            told: Called after each lot with how many there are, and of how many.
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
        self, program: Program, folder: Path, channel: Channel, images: int, told: Callable[[float, str], None]
    ) -> int:
        """Make a client's pool together with a server, where there is no dealer.

        Args:
            program: The outline.
            folder: The client's pool, which may be there already.
            channel: A connection to the server, whose offer has arrived.
            images: Number of images.
            told: Called with the share of the work that is done, and the layer at work.

        Returns:
            How many images the new lots are good for.

        Raises:
            EngineError: Lots are dealt, or either party failed.
            ConnectionError: The server is gone.
        """


class Engine(Protocol):
    """One way to run a program between parties, listed in `ENGINES` of its module, whose import is cheap.

    Attributes:
        name: As on the command line.
        trust: Trust assumptions in one or two lines, and what is not protected.
        packages: Modules that must be there.
        install: The commands that install them.
        encrypts: Whether it can speak TLS between hosts.
        delays: One-way delays of the link that a round takes, as measured.
    """

    name: str
    trust: str
    packages: tuple[str, ...]
    install: str
    encrypts: bool
    delays: float

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The offline phase in advance, where the engine has one."""

    def roles(self, options: Mapping[str, str]) -> tuple[Role, ...]:
        """The parties that it needs, the server first."""

    def check(self, program: Program, options: Mapping[str, str]) -> None:
        """Refuse, before anything starts, what the engine cannot do; of an outline only what it shows.

        Raises:
            UnsupportedModelError: An operation that it cannot do, by layer, or a number beyond its range.
            EngineError: An option that it does not have.
        """

    def run(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do one party's part, from connecting to the end; `ready` is called once the parties are connected."""

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """Bytes, rounds, comparisons and products, without running: online by operation, and offline."""


class SecondsModel(Protocol):
    """How long an engine takes on this machine."""

    def seconds(self, program: Program) -> tuple[float, float]:
        """Seconds of one image, online and before it, all parties on this machine."""

    def crossing(self, program: Program) -> Part:
        """What the client sends and gets before the image: bytes and rounds."""


@runtime_checkable
class TimedEngine(Protocol):
    """An engine whose seconds can be estimated."""

    def calibrate(self) -> SecondsModel:
        """Run something small on this machine."""


@runtime_checkable
class SessionEngine(Protocol):
    """An engine that sends something once, for any number of images."""

    def predict_session(self, program: Program) -> Part:
        """Its bytes."""


def engine_names() -> tuple[str, ...]:
    """Names of all engines, installed or not."""
    return tuple(MODULES)


def find_engine(name: str) -> Engine:
    """Look up an engine by name, whether its packages are installed or not.

    Raises:
        EngineError: There is none.
    """
    if name not in MODULES:
        raise EngineError(f"no engine is named {name}: take one of {', '.join(MODULES)}")
    engine: Engine = import_module(MODULES[name]).ENGINES[name]
    return engine


def engine_with_preprocessing() -> tuple[Engine, Preprocessing]:
    """The engine whose offline phase can be done in advance."""
    engines = map(find_engine, MODULES)
    return next((engine, engine.preprocessing) for engine in engines if engine.preprocessing is not None)


def check_installed(engine: Engine) -> None:
    """Refuse an engine whose packages are missing.

    Raises:
        EngineError: Says what to install.
    """
    missing = [package for package in engine.packages if util.find_spec(package) is None]
    if missing:
        raise EngineError(f"engine {engine.name} needs {', '.join(missing)}: install with `{engine.install}`")


def check_numbers(program: Program, limit: float) -> None:
    """Check that all numbers of a program are below a limit; an outline has none.

    Raises:
        UnsupportedModelError: Some are not; names every such layer.
    """
    problems = [
        f"{operation.name}: its {name} has a number that is not below {limit:.0f}, the range of fixed point: "
        "train with more weight decay"
        for operation in program.operations
        for name, value in hidden_tensors(operation).items()
        if not value.is_meta and not _below(value, limit)
    ]
    if problems:
        raise UnsupportedModelError(problems)


def check_gives_logits(program: Program, engine: str) -> None:
    """Refuse a program that gives classes alone, for an engine that gives logits.

    Raises:
        UnsupportedModelError: It does.
    """
    if program.hides_scores:
        raise UnsupportedModelError(f"engine {engine} gives logits alone: take --answer logits, or engine gateshare")


def check_images_below(images: Tensor, limit: float) -> None:
    """Check that all numbers of images are below a limit.

    Raises:
        EngineError: Some are not.
    """
    if not _below(images, limit):
        raise EngineError(
            f"the images hold a number that is not below {limit:.0f}, the range of fixed point: "
            "normalise them as the network was trained"
        )


def _below(values: Tensor, limit: float) -> bool:
    return bool((values.abs() < limit).all())


def check_images(images: Tensor, program: Program | None) -> None:
    """Check that a tensor is a batch of images for a program.

    Raises:
        EngineError: It is not; the message says what the program takes.
    """
    wanted = (
        "(N, C, H, W), (N, C, L) or (N, C)" if program is None else f"(N, {', '.join(map(str, program.input_size))})"
    )
    fits = 2 <= images.dim() <= 4 if program is None else tuple(images.shape[1:]) == program.input_size
    if not fits or not images.is_floating_point() or not len(images):
        raise EngineError(f"images of shape {tuple(images.shape)} and {images.dtype}: give floats of shape {wanted}")
    if not bool(torch.isfinite(images).all()):
        raise EngineError("the images hold numbers that are not finite: normalise them as the network was trained")
