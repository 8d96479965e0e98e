"""The interface of an engine: its tasks, the registry of all engines, and checks that they share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, util
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import Program, hidden_tensors
from deepshare.private.runtime import MODULES
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.runtime.preprocessing import Preprocessing
from deepshare.private.transport.tls import Tls

Role = Literal["server", "client", "dealer"]


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
    """Seconds that an engine takes on this machine."""

    def seconds(self, program: Program) -> tuple[float, float]:
        """Seconds of one image, online and before it, all parties on this machine."""

    def crossing(self, program: Program) -> Part:
        """Bytes and rounds of the client before the image."""


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
