"""The interface of an engine: its tasks, its measurements, the registry of all engines, and checks that they share."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import Program, hidden_tensors

Role = Literal["server", "client", "dealer"]


@dataclass(frozen=True)
class Tls:
    """Files in PEM format for mutual TLS: the authority that both trust, one's own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """TLS that requires a client certificate of the same authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        # A ticket arrives after the handshake: while the client's other thread writes, the two may wait for each other,
        # and closing a connection on which nobody has read it cuts what was sent before.
        context.num_tickets = 0
        return self._loaded(context)

    def client_context(self) -> ssl.SSLContext:
        """TLS that checks the server's certificate and host name, and presents its own certificate."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            folder = self.certificate.parent
            raise EngineError(
                f"{folder}: its certificates cannot be used ({error}): make a set with private keys"
            ) from error
        return context


@dataclass(frozen=True)
class Part:
    """Time, bytes and counts of one layer or of several, as one party or both together measured them.

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


@dataclass(frozen=True, eq=False)
class Outcome:
    """One party's result of a task.

    Attributes:
        logits: The client's; None for everyone else.
        layers: By number of the operation, with the bytes that this party sent.
        offline: Work that can be done before the images are there.
        session: Work that is done once and serves all further images.
        seconds: From the images to the logits, without offline and session.
    """

    logits: Tensor | None
    layers: Mapping[int, Part]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0


class Session(Protocol):
    """The server's part for one client, run in a thread.

    Attributes:
        address: Address for the client.
        token: Secret that the client presents there.
    """

    address: str
    token: bytes

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do the server's part; `ready` is called once the parties are connected."""

    def cut(self) -> None:
        """From another thread: make whatever it waits for fail."""

    def close(self) -> None:
        """Hang up; after `answer`, once its result or its error has been reported."""


class Host(Protocol):
    """The server's side of an engine that answers many clients at once."""

    def session(self, host: str) -> Session:
        """Begin to listen for one client on an address of this machine."""


class Preprocessing(Protocol):
    """The offline phase by a dealer, in advance: correlated randomness in pools on disk, one for each party.

    Attributes:
        options: The engine's options where parties use pools.
    """

    options: Mapping[str, str]

    def write_outline(self, path: Path, program: Program, samples: Tensor | None) -> None:
        """Write the public description of a network that a dealer works from.

        Args:
            path: File to write.
            program: The network, with its hidden numbers.
            samples: Images to calibrate on; None for synthetic ones.

        Raises:
            UnsupportedModelError: The network does something that the engine cannot do.
            EngineError: The file cannot be written.
        """

    def deal(self, outline: Path, folder: Path, *, images: int, clients: int, told: Callable[[int, int], None]) -> int:
        """Write the pools of a server and its clients.

        Args:
            outline: File of `write_outline`.
            folder: Folder for the pools.
            images: Number of images for each client.
            clients: Number of clients.
            told: Called after each lot with how many there are, and of how many.

        Returns:
            Lots of each client beyond one per image, as some turn out to be unusable.

        Raises:
            EngineError: The outline cannot be read, or the pools cannot be written.
        """

    def check_pool(self, folder: Path, role: Literal["server", "client"]) -> None:
        """Refuse a folder that is no pool of this party.

        Raises:
            EngineError: Says what it is.
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

    def host(self, program: Program, pool: Path | None) -> Host | None:
        """A host that answers many clients at once with a pool; None where clients take turns.

        Raises:
            EngineError: Nobody could be answered.
        """

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """Bytes, rounds, comparisons and products, without running: online by operation, and offline."""


_MODULES = {
    "crypten": "deepshare.private.engines.crypten",
    "gateshare": "deepshare.private.engines.gateshare",
    "gateshare-2pc": "deepshare.private.engines.gateshare",
    "spu-cheetah": "deepshare.private.engines.spu",
    "spu-semi2k": "deepshare.private.engines.spu",
}


def engine_names() -> tuple[str, ...]:
    """Names of all engines, installed or not."""
    return tuple(_MODULES)


def find_engine(name: str) -> Engine:
    """Look up an engine by name, whether its packages are installed or not.

    Raises:
        EngineError: There is none.
    """
    if name not in _MODULES:
        raise EngineError(f"no engine is named {name}: take one of {', '.join(_MODULES)}")
    engine: Engine = import_module(_MODULES[name]).ENGINES[name]
    return engine


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
