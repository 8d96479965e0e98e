"""The model's owner, waiting for clients on one port.

Whoever is silent, slow or a stranger waits at the front door and costs a descriptor. A client gets a place, and with it
a thread while it computes, once it has asked for something that can be answered: with an engine that hosts many clients
it has named a fresh lot. Places are limited, in all and for each certificate.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Self

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from deepshare.data.images import About
from deepshare.errors import DeepShareError, EngineError
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.guests.front_door import FrontDoor
from deepshare.private.remote.guests.guest import Guest, Reply, Work
from deepshare.private.remote.guests.journal import Journal
from deepshare.private.remote.guests.places import Places, Turn, Turns
from deepshare.private.remote.guests.processes import AT_ONCE, Apart, LotMaking, client_port
from deepshare.private.remote.session import PROTOCOL, Message
from deepshare.private.runtime.engine import Engine, engine_with_preprocessing
from deepshare.private.runtime.outcome import Outcome, account
from deepshare.private.runtime.preprocessing import Host, Session
from deepshare.private.transport.channel import Channel, LaterError, LeftError, PeerError, RefusalError
from deepshare.private.transport.tls import Tls
from deepshare.text import nearest

LARGEST_BATCH = 256
# How long a client may be connected before it asks, and hold its place while it has no images yet.
IDLE_SECONDS = 600.0
PARKED_SECONDS = 600.0
REFRESH_SECONDS = 2.0
# For a client that does not read the account of its inference.
ACCOUNT_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class Network:
    """A network that clients may ask.

    Attributes:
        program: With its hidden numbers, which stay here.
        about: Description of its images, for clients.
    """

    program: Program
    about: About


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """Networks that clients may ask.

    Attributes:
        engine: The engine.
        options: Options of the engine.
        networks: By name; a client that names none gets the first.
        tls: Certificates; None on one machine.
        pools: The server's pools, or folders of pools, for an engine with preprocessing.
        max_clients: Number of clients that are answered at once; more are refused.
        max_each: Number of those with one certificate; no limit without TLS.
        journal: Logs and counts.
    """

    engine: Engine
    options: Mapping[str, str]
    networks: Mapping[str, Network]
    tls: Tls | None = None
    pools: Sequence[Path] = ()
    max_clients: int = 64
    max_each: int = 16
    journal: Journal = field(default_factory=Journal)

    def listen(self, host: str, port: int) -> "Listening":
        """Open the port.

        Raises:
            EngineError: The port is taken, or the engine needs a third machine.
        """
        if self.engine.roles(self.options) != ("server", "client"):
            dealt = engine_with_preprocessing()[0].name
            raise EngineError(
                f"engine {self.engine.name} needs a third party: with {dealt}, make pools "
                "with private deal and give --pool; otherwise run it on one machine with private run"
            )
        if ":" in host:
            raise EngineError(f"{host} is an address of IPv6, which the engines do not speak: give one of IPv4")
        if not 0 <= port < 1 << 16:
            raise EngineError(f"{port} is no port: give one from 1 to 65535 with --port")
        hosts = {name: self._host(network) for name, network in self.networks.items()}
        try:
            listener = socket.create_server((host, port), backlog=1024)
        except OSError as error:
            raise EngineError(
                f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}): give another --port"
            ) from error
        return Listening(self, hosts, listener)

    def _host(self, network: Network) -> Host | None:
        preprocessing = self.engine.preprocessing
        if preprocessing is None or self.options != preprocessing.options:
            return None
        return preprocessing.host(network.program, self.pools)


@dataclass(eq=False)
class Visit:
    """What a server keeps for a guest that has said hello.

    Attributes:
        network: Name of the network that it asks.
        owner: Whose lots it uses.
        request: What it asks now.
        session: Its session with the engine's host, once it has asked.
        answering: The work on its request.
        turn: Its turn at making lots.
    """

    network: str
    owner: str = ""
    request: Message = field(default_factory=dict)
    session: Session | None = None
    answering: Generator[None, None, Outcome] | None = None
    turn: Turn | None = None


class Listening(Collector):
    """A server with an open port; a context manager that ends it.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, server: ModelServer, hosts: Mapping[str, Host | None], listener: socket.socket) -> None:
        self._server, self._hosts, self.journal = server, hosts, server.journal
        self.address = ":".join(map(str, listener.getsockname()[:2]))
        each = None if server.tls is None else server.max_each
        self._places = Places(server.max_clients, each, self._send_away, self._cut_off)
        self._making = Turns(1, "lots are being made")
        self._turns = Turns(AT_ONCE, "this engine computes")
        self._ended = threading.Event()
        self._first = next(iter(server.networks))
        self._offers = {name: self._offer(network) for name, network in server.networks.items()}
        self._digests = {name: outline.digest(network.program) for name, network in server.networks.items()}
        context = None if server.tls is None else server.tls.server_context()
        self._door = FrontDoor(listener, context, heard=self._heard, left=self._leave, make_channel=self._make_channel)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.shutdown()

    def serve_forever(self) -> None:
        """Answer clients until `shutdown`."""
        threading.Thread(target=self._refresh, name="pools", daemon=True).start()
        try:
            self._door.run()
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """End; from any thread."""
        self._ended.set()
        self._door.stop()

    def drain(self, seconds: float) -> bool:
        """From another thread: take no more clients, and wait for those that are being answered; returns whether."""
        self._door.stop_accepting()
        deadline = time.monotonic() + seconds
        while (busy := self.sessions) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not busy

    @property
    def sessions(self) -> int:
        """Number of places that are taken."""
        return len(self._places)

    def metrics(self) -> bytes:
        """Figures in the text format of Prometheus."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The journal's counts, and values of the moment."""
        yield from self.journal.registry.collect()
        yield GaugeMetricFamily("deepshare_sessions", "Places that are taken.", self.sessions)
        yield GaugeMetricFamily("deepshare_connections", "Connections, strangers included.", self._door.connections)
        turned_away = "Connections closed at once, since their host has too many."
        yield CounterMetricFamily("deepshare_turned_away", turned_away, self._door.turned_away)
        labels = ("network", "pool", "owner")
        left = GaugeMetricFamily("deepshare_pool_images_left", "Images that can still be asked.", labels=labels)
        dealt = GaugeMetricFamily("deepshare_pool_images_dealt", "Images that were dealt.", labels=labels)
        for name, host in self._hosts.items():
            for pool, owner, still, in_all in () if host is None else host.levels():
                left.add_metric((name, pool, owner), still)
                dealt.add_metric((name, pool, owner), in_all)
        yield from (left, dealt)

    def _refresh(self) -> None:
        wrong: dict[str, str] = {}
        while not self._ended.wait(REFRESH_SECONDS):
            for name, host in self._hosts.items():
                if host is not None:
                    before, wrong[name] = wrong.get(name), ""
                    try:
                        for said in host.refresh():
                            self.journal.info(f"{name}: {said}", network=name)
                        for said in host.warnings():
                            self.journal.warning(f"{name}: {said}", network=name)
                    except (DeepShareError, OSError) as error:
                        wrong[name] = str(error)
                    if wrong[name] not in ("", before):  # once, and not every other second
                        self.journal.warning(f"{name}: {wrong[name]}", network=name)

    def _send_away(self, guest: Guest, error: LaterError) -> bool:
        return self._door.refuse_parked(guest, error)

    def _cut_off(self, guest: Guest) -> None:
        self.journal.refused(guest.who, "late", "it kept a place waiting, has others, and somebody needs it")
        guest.channel.break_off()

    def _make_channel(self, connection: socket.socket) -> Channel:
        host = self._hosts[self._first]
        return Channel(connection, "client") if host is None else host.channel(connection)

    def _offer(self, network: Network) -> Message:
        return {
            "protocol": PROTOCOL,
            "engine": self._server.engine.name,
            "options": dict(self._server.options),
            "outline": outline.dump(network.program),
            "about": network.about.model_dump(mode="json"),
        }

    def _heard(self, guest: Guest, message: Message) -> Reply | Work:
        if guest.state is None:
            return self._greet(guest, message)
        visit: Visit = guest.state
        host = self._hosts[visit.network]
        if "prepare" in message and host is not None:
            return self._admit_making(guest, host, message)
        self._check(visit, message)
        visit.owner = "" if host is None else host.admit(message, guest.name)
        self._places.give(guest)
        visit.request = message
        return Work(partial(self._begin, guest, host))

    def _admit_making(self, guest: Guest, host: Host, message: Message) -> Work:
        """Let a guest make lots with a process of this server, when it is its turn."""
        server, visit = self._server, guest.state
        if message.get("outline") != self._digests[visit.network]:
            raise RefusalError("the client has another plan than this server: ask again")
        visit.turn = turn = self._making.take(guest.identity)
        self._places.give(guest)
        program = server.networks[visit.network].program
        making = LotMaking(server.engine.name, server.options, self._making, self.journal)

        def run() -> None:
            error: RefusalError | None = None
            try:
                error = making.run(guest, turn, program, host.admit_making(message, guest.name))
            except RefusalError as refusal:
                error = refusal
            except Exception as fault:  # ours, such as no descriptor left for a socket
                self.journal.failed(guest.who, fault)
            finally:
                self._making.leave(turn)
                self._places.leave(guest)
                _refresh(host)
                if error is None:
                    self._door.leave(guest)
                else:
                    self._door.refuse(guest, error)

        return Work(run)

    def _greet(self, guest: Guest, hello: Message) -> Reply:
        if hello.get("protocol") != PROTOCOL:
            ours = version("deepshare")
            raise RefusalError(f"this server speaks protocol {PROTOCOL}: install deepshare {ours} on your side")
        name = hello.get("network") or self._first
        if not isinstance(name, str) or name not in self._offers:
            near = nearest(str(name)[:64], list(self._offers)) or ":"
            raise RefusalError(f"there is no such network here{near} name one of {', '.join(self._offers)}")
        guest.state = Visit(name)
        host = self._hosts[name]
        body = json.dumps(self._offers[name] | {"dealings": [] if host is None else host.dealings}).encode()
        return Reply((guest.channel.message_header(len(body)), body), IDLE_SECONDS)

    def _check(self, visit: Visit, wish: Message) -> None:
        count = wish.get("images")
        if wish.get("outline") != self._digests[visit.network]:
            raise RefusalError("the client has another plan than this server: ask again")
        if type(count) is not int or not 1 <= count <= LARGEST_BATCH:
            raise RefusalError(f"too many images at once, or none: give between 1 and {LARGEST_BATCH}")
        if self._hosts[visit.network] is None:
            client_port(wish)

    def _begin(self, guest: Guest, host: Host | None) -> None:
        """Begin to answer a request; in the guest's thread, as all that follows."""
        visit: Visit = guest.state
        if host is None:
            self._guarded(guest, partial(self._answer_apart, guest))
            return

        def begin() -> None:
            if visit.session is None:
                visit.session = host.session(guest.channel, visit.request, visit.owner)
            visit.answering = visit.session.answer(visit.request)
            self._go_on(guest)

        self._guarded(guest, begin)

    def _go_on(self, guest: Guest) -> None:
        visit: Visit = guest.state
        if visit.answering is None:
            raise AssertionError("nothing to answer")
        self._places.park(guest, parked=False)
        try:
            next(visit.answering)
        except StopIteration as end:
            visit.answering = None
            self._finish(guest, end.value)
            return
        self._places.park(guest, parked=True)
        self._door.park(guest, partial(self._guarded, guest, partial(self._go_on, guest)), PARKED_SECONDS)

    def _finish(self, guest: Guest, outcome: Outcome) -> None:
        visit: Visit = guest.state
        body = json.dumps(account(outcome)).encode()
        try:
            guest.channel.connection.settimeout(ACCOUNT_SECONDS)
            guest.channel.connection.sendall(guest.channel.message_header(len(body)) + body)
        except OSError as error:
            raise ConnectionError("it does not read the account of its inference") from error
        self._places.leave(guest)
        self.journal.answered(guest.who, visit.network, visit.owner, visit.request["images"], outcome)
        self._door.listen_to(guest, IDLE_SECONDS)

    def _guarded(self, guest: Guest, run: Callable[[], None]) -> None:
        """Run a part of an inference; whatever happens, the guest hears of it, and nobody else does."""
        try:
            run()
        except RefusalError as error:
            self._door.refuse(guest, error)
        except PeerError:  # in its own words, which stay out of the log
            self.journal.refused(guest.who, "gone", "it ended the inference")
            self._door.leave(guest)
        except ConnectionError as error:
            self.journal.refused(guest.who, "left" if isinstance(error, LeftError) else "gone", str(error))
            self._door.leave(guest)
        except Exception as error:
            self.journal.failed(guest.who, error)
            self._door.refuse(guest, RefusalError("its part failed, and its log says why: ask again"))

    def _leave(self, guest: Guest, reason: str) -> None:
        """A guest is gone, or was refused."""
        self._places.leave(guest)
        if isinstance(guest.state, Visit):
            guest.state.answering = None
            self._making.leave(guest.state.turn)
        if reason:
            self.journal.refused(guest.who, _kind(guest, reason), reason)

    def _answer_apart(self, guest: Guest) -> None:
        """Run the server's part in a process of its own, with connections of its own."""
        server, visit = self._server, guest.state
        apart = Apart(server.engine.name, server.options, server.tls, self._turns, self.journal)
        outcome = apart.answer(guest, server.networks[visit.network].program, visit.request)
        self._places.leave(guest)
        self.journal.answered(guest.who, visit.network, "", visit.request["images"], outcome)
        with suppress(OSError):
            guest.channel.connection.settimeout(1.0)
        self._door.listen_to(guest, 1.0)


def _refresh(host: Host) -> None:
    with suppress(DeepShareError, OSError):
        host.refresh()


def _kind(guest: Guest, reason: str) -> str:
    """A few words for the count of refusals."""
    if guest.state is None and not guest.name:
        return "stranger"
    return "busy" if "ask again later" in reason else "refused"
