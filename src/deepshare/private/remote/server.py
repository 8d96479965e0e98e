"""The model's owner, waiting for clients."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from websockets.sync.server import Server, ServerConnection
from websockets.sync.server import serve as listen

from deepshare import __version__
from deepshare.data.about import About
from deepshare.errors import EngineError
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.handshake import PROTOCOL, SETTINGS, Control, Message, server_context
from deepshare.private.remote.session import Start, TheirError, run_party
from deepshare.private.result import Outcome
from deepshare.private.runtime.engine import Engine, Host, Role, Task, Tls
from deepshare.private.runtime.local import free_ports
from deepshare.private.runtime.subprocess_party import in_process
from deepshare.private.runtime.thread_party import Thread

LARGEST_BATCH = 256
# How long a client may be connected before it asks.
IDLE_SECONDS = 600.0


@dataclass(frozen=True)
class Service:
    """A model that clients may ask.

    Attributes:
        engine: How.
        options: The engine's.
        program: With its hidden numbers; they stay here.
        about: What clients are told of the images.
        tls: Certificates; None on one machine.
        told: Called with one line for each thing that happens.
        pool: What was dealt beforehand, for an engine that has such.
        most: Clients that are answered at once; more are refused.
    """

    engine: Engine
    options: Mapping[str, str]
    program: Program
    about: About
    tls: Tls | None
    told: Callable[[str], None]
    pool: Path | None = None
    most: int = 64
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)

    def open(self, host: str, port: int) -> Server:
        """Listen; `serve_forever` of what is returned answers clients until `shutdown`.

        Raises:
            EngineError: The port is taken, or the engine needs a third machine.
        """
        if self.engine.roles(self.options) != ("server", "client"):
            raise EngineError(
                f"engine {self.engine.name} needs a third party: with gateshare, make pools with private deal and give "
                "--pool; otherwise run it on one machine with private run"
            )
        if ":" in host:
            raise EngineError(f"{host} is an address of IPv6, which the engines do not speak: give one of IPv4")
        many = self.engine.host(self.program, self.pool)
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise EngineError(f"cannot listen on {host}:{port} ({error.strerror}): give another --port") from error
        context = None if self.tls is None else server_context(self.tls)
        places = threading.Semaphore(self.most)
        return listen(partial(self._answer, many, places), sock=listener, ssl=context, **SETTINGS)

    def _answer(self, many: Host | None, places: threading.Semaphore, connection: ServerConnection) -> None:
        who = ":".join(map(str, connection.remote_address[:2]))
        control = Control(connection, "client")
        try:
            count, address = self._wish(control)
            with self._place(places):
                outcome = self._session(control, many, count, address)
            self.told(f"{who}: {count} {'image' if count == 1 else 'images'} in {outcome.seconds:.2f} s")
        except EngineError as error:
            # What the client said itself is no reason to give it.
            control.end("gone" if isinstance(error, TheirError) else "refused", str(error))
            self.told(f"{who}: {error}")

    @contextmanager
    def _place(self, places: threading.Semaphore) -> Iterator[None]:
        if not places.acquire(blocking=False):
            raise EngineError(f"{self.most} clients are being answered already: ask again later")
        try:
            yield
        finally:
            places.release()

    def _wish(self, control: Control) -> tuple[int, str]:
        hello = control.receive()
        if hello.get("protocol") != PROTOCOL:
            raise EngineError(
                f"this server speaks protocol {PROTOCOL}, the client {hello.get('protocol')}: "
                f"install deepshare {__version__} there"
            )
        control.send(self._offer())
        return self._checked(control.receive(IDLE_SECONDS))

    def _session(self, control: Control, many: Host | None, count: int, address: str) -> Outcome:
        with self._started(control.local_host, many) as (mine, token, start):
            addresses: dict[Role, str] = {"server": mine, "client": address}
            control.send({"start": addresses, "token": token.hex()})
            task = Task("server", self.program, addresses, None, count, self.tls, self.options, self.pool)
            return run_party(start, task, control)[0]

    @contextmanager
    def _started(self, host: str, many: Host | None) -> Iterator[tuple[str, bytes, Start]]:
        """Where the server's part will be, what the client shows there, and what starts it."""
        if many is None:
            with self._turn:
                yield f"{host}:{free_ports(host, 1)[0]}", b"", in_process(self.engine)
        else:
            with closing(many.session(host)) as session:
                yield session.address, session.token, partial(Thread, session)

    def _offer(self) -> Message:
        return {
            "protocol": PROTOCOL,
            "engine": self.engine.name,
            "options": dict(self.options),
            "outline": outline.dump(self.program),
            "about": self.about.model_dump(mode="json"),
        }

    def _checked(self, wish: Message) -> tuple[int, str]:
        count, address = wish.get("images"), wish.get("address")
        if wish.get("outline") != outline.digest(self.program):
            raise EngineError("the client has another plan than this server: ask again")
        if not isinstance(count, int) or not 1 <= count <= LARGEST_BATCH:
            raise EngineError(f"{count} images at once: give between 1 and {LARGEST_BATCH}")
        if not isinstance(address, str):
            raise EngineError("the client gave no address")
        return count, address
