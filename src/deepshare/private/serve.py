"""The model's owner, waiting for clients."""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from websockets.sync.server import Server, ServerConnection
from websockets.sync.server import serve as listen

from deepshare import __version__
from deepshare.data.about import About
from deepshare.errors import EngineError
from deepshare.private import outline
from deepshare.private.agree import run_party
from deepshare.private.control import PROTOCOL, SETTINGS, Control, Message, server_context
from deepshare.private.engine import Engine, Role, Task, Tls
from deepshare.private.local import free_ports
from deepshare.private.program import Program
from deepshare.private.result import Outcome

LARGEST_BATCH = 256


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
    """

    engine: Engine
    options: Mapping[str, str]
    program: Program
    about: About
    tls: Tls | None
    told: Callable[[str], None]
    pool: Path | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)

    def open(self, host: str, port: int) -> Server:
        """Listen; `serve_forever` of what is returned answers clients until `shutdown`.

        Raises:
            EngineError: The port is taken, or the engine needs a third machine.
        """
        if self.engine.roles(self.options) != ("server", "client"):
            raise EngineError(
                f"engine {self.engine.name} with {dict(self.options)} needs a third party: "
                "run it on one machine with private run; with gateshare, have it dealt beforehand and give --pool"
            )
        if ":" in host:
            raise EngineError(f"{host} is an address of IPv6, which the engines do not speak: give one of IPv4")
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise EngineError(f"cannot listen on {host}:{port} ({error.strerror}): give another --port") from error
        context = None if self.tls is None else server_context(self.tls)
        return listen(self._answer, sock=listener, ssl=context, **SETTINGS)

    def _answer(self, connection: ServerConnection) -> None:
        who = ":".join(map(str, connection.remote_address[:2]))
        control = Control(connection, "client")
        try:
            count, outcome = self._session(control)
            self.told(f"{who}: {count} images in {outcome.seconds:.2f} s")
        except EngineError as error:
            control.refuse(error)
            self.told(f"{who}: {error}")

    def _session(self, control: Control) -> tuple[int, Outcome]:
        hello = control.receive()
        if hello.get("protocol") != PROTOCOL:
            raise EngineError(
                f"this server speaks protocol {PROTOCOL}, the client {hello.get('protocol')}: "
                f"install deepshare {__version__} there"
            )
        control.send(self._offer())
        wish = control.receive(None)
        count, address = self._checked(wish)
        host = control.local_host
        with self.turn:
            addresses: dict[Role, str] = {"server": f"{host}:{free_ports(host, 1)[0]}", "client": address}
            control.send({"start": addresses})
            task = Task("server", self.program, addresses, None, count, self.tls, self.options, self.pool)
            return count, run_party(self.engine, task, control)[0]

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
