"""The model's owner, waiting for clients."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from websockets.sync.server import Server as WebSocketServer
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from deepshare import __version__
from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.session import PROTOCOL, SETTINGS, Control, Message, PeerError, run_session
from deepshare.private.runtime.engine import Engine, Host, Outcome, Role, Task, Tls
from deepshare.private.runtime.party import Party, ProcessParty, ThreadParty, free_ports

LARGEST_BATCH = 256
# How long a client may be connected before it asks.
IDLE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """A model that clients may ask.

    Attributes:
        engine: The engine.
        options: Options of the engine.
        program: The network with its hidden numbers, which stay here.
        about: Description of the images, for clients.
        tls: Certificates; None on one machine.
        log: Called with one line for each session and each refusal.
        pool: The server's pool, for an engine with preprocessing.
        max_clients: Number of clients that are answered at once; more are refused.
    """

    engine: Engine
    options: Mapping[str, str]
    program: Program
    about: About
    tls: Tls | None = None
    log: Callable[[str], None]
    pool: Path | None = None
    max_clients: int = 64
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)

    def listen(self, host: str, port: int) -> WebSocketServer:
        """Open the port; `serve_forever` of the result answers clients until `shutdown`.

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
        sessions = self.engine.host(self.program, self.pool)
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise EngineError(f"cannot listen on {host}:{port} ({error.strerror}): give another --port") from error
        context = None if self.tls is None else self.tls.server_context()
        slots = threading.Semaphore(self.max_clients)
        return serve_websocket(partial(self._answer, sessions, slots), sock=listener, ssl=context, **SETTINGS)

    def _answer(self, sessions: Host | None, slots: threading.Semaphore, connection: ServerConnection) -> None:
        who = ":".join(map(str, connection.remote_address[:2]))
        control = Control(connection, "client")
        try:
            count, address = self._agree(control)
            with self._slot(slots):
                outcome = self._infer(control, sessions, count, address)
            self.log(f"{who}: {count} {'image' if count == 1 else 'images'} in {outcome.seconds:.2f} s")
        except EngineError as error:
            # What the client said itself is no reason to give it.
            control.end("gone" if isinstance(error, PeerError) else "refused", str(error))
            self.log(f"{who}: {error}")

    @contextmanager
    def _slot(self, slots: threading.Semaphore) -> Iterator[None]:
        if not slots.acquire(blocking=False):
            raise EngineError(f"{self.max_clients} clients are being answered already: ask again later")
        try:
            yield
        finally:
            slots.release()

    def _agree(self, control: Control) -> tuple[int, str]:
        """Agree with a client: the number of its images, and its address."""
        hello = control.receive()
        if hello.get("protocol") != PROTOCOL:
            raise EngineError(
                f"this server speaks protocol {PROTOCOL}, the client {hello.get('protocol')}: "
                f"install deepshare {__version__} there"
            )
        control.send(
            {
                "protocol": PROTOCOL,
                "engine": self.engine.name,
                "options": dict(self.options),
                "outline": outline.dump(self.program),
                "about": self.about.model_dump(mode="json"),
            }
        )
        return self._checked(control.receive(IDLE_SECONDS))

    def _checked(self, wish: Message) -> tuple[int, str]:
        count, address = wish.get("images"), wish.get("address")
        if wish.get("outline") != outline.digest(self.program):
            raise EngineError("the client has another plan than this server: ask again")
        if not isinstance(count, int) or not 1 <= count <= LARGEST_BATCH:
            raise EngineError(f"{count} images at once: give between 1 and {LARGEST_BATCH}")
        if not isinstance(address, str):
            raise EngineError("the client gave no address")
        return count, address

    def _infer(self, control: Control, sessions: Host | None, count: int, address: str) -> Outcome:
        """Run the server's part: in a thread if the engine hosts many clients, else in a process, one at a time."""
        if sessions is None:
            with self._turn:
                own = f"{control.local_host}:{free_ports(control.local_host, 1)[0]}"
                return self._run(control, self._task(own, address, count), b"", partial(ProcessParty, self.engine.name))
        with closing(sessions.session(control.local_host)) as session:
            task = self._task(session.address, address, count)
            return self._run(control, task, session.token, partial(ThreadParty, session))

    def _task(self, own: str, client: str, count: int) -> Task:
        addresses: dict[Role, str] = {"server": own, "client": client}
        return Task(
            role="server",
            program=self.program,
            addresses=addresses,
            count=count,
            tls=self.tls,
            options=self.options,
            extras={"pool": self.pool},
        )

    def _run(self, control: Control, task: Task, token: bytes, party: Callable[[Task], Party]) -> Outcome:
        control.send({"start": dict(task.addresses), "token": token.hex()})
        return run_session(party(task), task, control)[0]
