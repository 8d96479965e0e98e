"""What an engine is: what it can do, what it protects, and what each of its parties runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.result import Outcome, Part

Role = Literal["server", "client", "dealer"]


@dataclass(frozen=True)
class Tls:
    """Files in PEM format for mutual TLS: the authority that both trust, one's own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, eq=False)
class Task:
    """What one party is to do, in a process of its own.

    Attributes:
        role: Which party it is.
        program: Whole for the server, an outline for everyone else.
        addresses: Where each party can be reached by the others for this inference, as host:port.
        images: The client's, (N, C, H, W), normalised as the network takes them; None for everyone else.
        count: How many images there are, known to all.
        tls: For engines that can; None on one machine.
        options: What the engine offers to choose, such as {"provider": "ttp"} of crypten.
        pool: This party's folder of what was dealt beforehand, for engines that have such.
        token: What a client shows first to a server that gives each session a port.
    """

    role: Role
    program: Program
    addresses: Mapping[Role, str]
    images: Tensor | None
    count: int
    tls: Tls | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    pool: Path | None = None
    token: bytes = b""


class Session(Protocol):
    """The server's part for one client, to be done in a thread.

    Attributes:
        address: Where the client finds it.
        token: What the client has to show there.
    """

    address: str
    token: bytes

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do it; `ready` is called once the parties are connected."""

    def cut(self) -> None:
        """From another thread: whatever it waits for fails."""

    def close(self) -> None:
        """Hang up; after `answer`, and after what it gave or raised was told."""


class Host(Protocol):
    """A model's owner that works for many clients at once."""

    def session(self, host: str) -> Session:
        """Begin to listen, on an address of this machine, for one client."""


class Engine(Protocol):
    """One way to run a program between parties. An engine's module has one as `ENGINE`; importing it is cheap.

    Attributes:
        name: As on the command line.
        trust: One or two lines: who has to trust whom, and what is not protected.
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
        """What answers many clients at once with a pool; None where they have to take turns.

        Raises:
            EngineError: Nobody could be answered.
        """

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """Bytes, rounds, comparisons and products, without running: online by operation, and offline."""


_MODULES = {
    "crypten": "deepshare.private.engines.crypten",
    "gateshare": "deepshare.private.engines.gateshare",
    "spu-cheetah": "deepshare.private.engines.spu",
    "spu-semi2k": "deepshare.private.engines.spu",
}


def engine_names() -> tuple[str, ...]:
    """All engines, installed or not."""
    return tuple(_MODULES)


def find_engine(name: str) -> Engine:
    """The engine of a name, whether its packages are installed or not.

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
