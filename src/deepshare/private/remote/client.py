"""The images' owner, asking a server."""

import hashlib
import ipaddress
import random
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from torch import Tensor

from deepshare.data.images import About
from deepshare.errors import DeepShareError, EngineError
from deepshare.private.cost import Result, total
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.session import LONGEST_OFFER, PROTOCOL, Control, Message, run_session
from deepshare.private.runtime.engine import (
    Engine,
    Role,
    Task,
    check_images,
    check_installed,
    engine_with_preprocessing,
    find_engine,
)
from deepshare.private.runtime.outcome import Outcome, measured
from deepshare.private.runtime.party import ProcessParty, free_ports
from deepshare.private.runtime.preprocessing import HostedClient
from deepshare.private.transport.channel import Channel, PeerBusyError, PeerError, Watch, reach
from deepshare.private.transport.tls import Tls
from deepshare.text import printable

# How long a server may be busy, or another one than the pool's behind a balancer, before it is an error.
PATIENCE_SECONDS = 10.0
OFFER_SECONDS = 60.0
MOST_OPTIONS = 16
# What a normalised picture holds at most: beyond, it would depend on the picture whether it can be computed with.
LARGEST_NUMBER = 4096.0
_TURNED_AWAY = "{} hung up at once: too many connect to it from where you are, or it is not up; ask again later"


class LostError(EngineError):
    """The connection to the server was lost."""


class AbsentError(EngineError):
    """No server listens there, for now."""


@dataclass(frozen=True)
class Offer:
    """A server's description of itself.

    Attributes:
        engine: The engine that it uses.
        options: Options of the engine.
        program: An outline.
        about: Description of its images.
        dealings: Ids of the dealings that it has pools of.
    """

    engine: Engine
    options: dict[str, str]
    program: Program
    about: About
    dealings: frozenset[str]

    @property
    def uses_pools(self) -> bool:
        """Whether the parties use pools that a dealer prepared in advance."""
        preprocessing = self.engine.preprocessing
        return preprocessing is not None and self.options == preprocessing.options


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server to ask.

    Attributes:
        address: Its HOST:PORT.
        tls: This party's certificates.
        pool: This party's pool, or a folder of pools, for an engine with preprocessing.
        engine: Name of the engine that it must use; None where the pool decides.
        network: Name of the network; None for the first that the server has.
        insecure: Whether to ask another machine without TLS.
    """

    address: str
    tls: Tls | None = None
    pool: Path | None = None
    engine: str | None = None
    network: str | None = None
    insecure: bool = False

    def check(self) -> None:
        """Refuse what cannot be asked, before anything is sent.

        Raises:
            EngineError: Says why.
        """
        host = _host(self.address)
        if self.tls is None and not self.insecure and not _is_here(host):
            raise EngineError(
                f"{host} is another machine, and without TLS everyone between can read and change what is sent: give "
                "--tls, or --insecure if the link is safe"
            )
        if self.pool is None and self.engine is None:
            raise EngineError("say how to compute: give your pool with --pool, or an engine with --engine")


class ModelClient:
    """A connection to a server whose offer has arrived.

    Attributes:
        offer: The offer.
        prepared: Number of images that everything is prepared for.
    """

    def __init__(self, server: Server) -> None:
        server.check()
        self._server = server
        self._channel = _opened(server.address, server.tls)
        try:
            self.offer = read_offer(self._hear_offer(), server)
        except BaseException:
            self._channel.close()
            raise
        self._hosted: HostedClient | None = None
        self.prepared = 0

    @property
    def channel(self) -> Channel:
        """The connection."""
        return self._channel

    def close(self) -> None:
        """Hang up."""
        self._channel.close()
        if self._hosted is not None:
            self._hosted.close()

    def check(self, images: Tensor) -> None:
        """Refuse images that do not fit, before anything is sent.

        Raises:
            EngineError: Says what the server takes.
        """
        check_images(images, self.offer.program)
        if self.offer.uses_pools:
            hosted, largest = self._client(), self.offer.about.largest
            # For all pictures alike: by which of them is refused a server could learn what they hold.
            if not largest <= hosted.limit:
                raise EngineError(
                    f"the server normalises pictures to numbers up to {largest:.4g}, and your pool is for numbers up "
                    f"to {hosted.limit:g}: nothing was sent; deal for an outline calibrated on bright and dark images"
                )
            hosted.check(images)

    def prepare(self, count: int) -> None:
        """Do all that can be done before so many images are there, with an engine that has such a phase."""
        if self.offer.uses_pools and self.prepared != count:
            self._client().prepare(self._channel, count)
            self.prepared = count

    def left(self) -> int:
        """Number of images that the pool is good for."""
        return self._client().left()

    def low(self) -> str:
        """A line if the pool is low, or nothing."""
        return self._client().low()

    def ask(self, images: Tensor, watch: Watch | None = None) -> Result:
        """Classify images with the server's network; the server never sees them.

        Args:
            images: (N, C, H, W), normalised; `offer.about` does it.
            watch: Told of every frame between the images and the logits, with an engine that has a pool.

        Raises:
            EngineError: The images do not fit, or either party failed.
        """
        self.check(images)
        if not self.offer.uses_pools:
            return self._ask_apart(images)
        before = self._client().left()
        try:
            self.prepare(len(images))
            self.prepared = 0
            self._channel.watch = watch
            self._client().infer(images)
            peer = measured(self._channel.receive_message(), self.offer.program)
        except ConnectionError as error:
            raise LostError(f"{error}: ask again; what was dealt for these images may be spent") from error
        except PeerBusyError as error:
            if self._client().left() == before:
                raise
            # Asked again and again, a server that says so would use up the pool.
            raise LostError(f"{error}; what was dealt for these images is spent") from error
        finally:
            self._channel.watch = None
        own = self._client().outcome()
        return _result(self.offer, own, peer, len(images))

    def _hear_offer(self) -> Message:
        channel, address = self._channel, self._server.address
        channel.silence = OFFER_SECONDS
        try:
            channel.send_message({"protocol": PROTOCOL, "network": self._server.network})
            return channel.receive_message(LONGEST_OFFER)
        except PeerError:
            raise
        except (EngineError, ConnectionError) as error:
            if isinstance(error.__cause__, ConnectionResetError | BrokenPipeError):
                raise PeerBusyError(_TURNED_AWAY.format(address)) from error
            # In TLS 1.3 a server looks at the client's certificate after the client's handshake.
            if isinstance(error.__cause__, ssl.SSLError) and "ALERT" in str(error.__cause__.reason):
                cure = "take one of the authority that the server has (both folders of one private keys)"
                raise EngineError(f"{address}: the server does not trust your certificate: {cure}") from error
            cure = "is it deepshare private serve, and does it use --tls as you do?"
            raise EngineError(f"{address} does not answer as a server of deepshare: {cure}") from error
        finally:
            channel.silence = None

    def _client(self) -> HostedClient:
        if self._hosted is None:
            preprocessing, pool = self.offer.engine.preprocessing, self._server.pool
            if preprocessing is None or pool is None:
                raise EngineError(
                    "the server uses what was dealt beforehand: give your pool of the same dealing with --pool"
                )
            self._hosted = preprocessing.client(self.offer.program, pool, self.offer.dealings)
        return self._hosted

    def _ask_apart(self, images: Tensor) -> Result:
        """Run the client's part in a process of its own, with connections of its own."""
        offer, control = self.offer, Control(self._channel, "server")
        address = f"{control.local_host}:{free_ports(control.local_host, 1)[0]}"
        control.send({"images": len(images), "address": address, "outline": outline.digest(offer.program)})
        # The host is the one that was asked: it is on the certificate, and the server may not know it itself.
        own_address = f"{_host(self._server.address)}:{_port(control.receive(patient=True))}"
        addresses: dict[Role, str] = {"server": own_address, "client": address}
        task = Task(
            role="client",
            program=offer.program,
            addresses=addresses,
            images=images,
            count=len(images),
            tls=self._server.tls,
            options=offer.options,
        )
        own, peer = run_session(ProcessParty(offer.engine.name, task), task, control)
        return _result(offer, own, peer, len(images))


def _result(offer: Offer, own: Outcome, peer: Outcome, images: int) -> Result:
    answer = own.answer()
    cost = total(offer.engine.name, offer.program, images, [peer, own])
    return Result(answer, cost, offer.program.hides_scores, offer.about.classes)


@contextmanager
def connected(server: Server) -> Iterator[ModelClient]:
    """Connect to a server.

    Raises:
        EngineError: It is not there, or is not a server of deepshare, or does not compute as asked.
    """
    client = ModelClient(server)
    try:
        yield client
    finally:
        client.close()


Answer = TypeVar("Answer")


def ask_when_free(server: Server, use: Callable[[ModelClient], Answer]) -> Answer:
    """Connect to a server and use it, if need be again and again for a while."""

    def once() -> Answer:
        with connected(server) as client:
            return use(client)

    return when_free(once)


def when_free(ask: Callable[[], Answer], *, restarted: bool = False) -> Answer:
    """Ask a server; one that is busy, or another one than the pool's, is tried again for a while.

    Args:
        ask: Asks once.
        restarted: Whether to wait for one that is absent, too, since it was there before.
    """
    passing = (PeerBusyError, AbsentError) if restarted else PeerBusyError
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except passing:
            if time.monotonic() > deadline:
                raise
            # Not in step with others: behind a balancer that takes turns each could meet the other's server for ever.
            time.sleep(random.uniform(0.05, 0.35))


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(server: str) -> str:
    try:
        where = urlsplit(f"//{server}")
        if where.hostname and where.port:
            return where.hostname
    except ValueError:  # a port that is none, or a bracket that does not end
        pass
    raise EngineError(f"{server} is no address of a server: give HOST:PORT, such as 192.0.2.7:8443")


def _opened(server: str, tls: Tls | None) -> Channel:
    try:
        return reach(server, "server", tls)
    except ssl.SSLCertVerificationError as error:
        cure = "take certificates of one authority, which name the host that you ask (private keys --host)"
        raise EngineError(f"{server}: no trust in its certificate ({error.verify_message}): {cure}") from error
    except ssl.SSLError as error:
        cure = "is it started with --tls, and with the same authority?"
        raise EngineError(f"{server}: no TLS with it ({error.reason or error}): {cure}") from error
    except ConnectionResetError as error:
        raise PeerBusyError(_TURNED_AWAY.format(server)) from error
    except OSError as error:
        why = error.strerror or "no answer"
        raise AbsentError(f"no server at {server} ({why}): start deepshare private serve there") from error


def _port(message: Message) -> int:
    """The port of the server's part."""
    try:
        return int(message["start"]["server"].rpartition(":")[2])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError("the server gave no port: install the same deepshare") from error


def read_offer(message: Message, server: Server) -> Offer:
    """Read what a server offers, and check that it is what was asked for.

    Args:
        message: From the server, which may be hostile.
        server: The server as it was asked.

    Raises:
        PeerBusyError: It is another server than that of the pool, as behind a balancer.
        EngineError: It is damaged, or something else.
    """
    if message.get("protocol") != PROTOCOL:
        raise EngineError(f"the server does not speak protocol {PROTOCOL}: install the same deepshare on both sides")
    try:
        return _read(message, server)
    except PeerBusyError:
        raise
    except DeepShareError as error:
        raise EngineError(printable(str(error))) from error
    except Exception as error:  # whatever a hostile server makes up
        raise EngineError("the server's offer is damaged: install the same deepshare on both sides") from error


def _read(message: dict[str, Any], server: Server) -> Offer:
    name = message["engine"]
    if server.engine is not None and name != server.engine:
        raise EngineError(f"{server.address} does not use engine {server.engine}: nothing was sent to it")
    engine = find_engine(str(name)[:40])
    options = {str(key): str(value) for key, value in list(message["options"].items())[:MOST_OPTIONS]}
    preprocessing = engine.preprocessing
    dealings = frozenset(map(str, message["dealings"]))
    if server.pool is not None:
        if preprocessing is None or options != preprocessing.options:
            raise EngineError(
                f"the server computes with {engine.name} without a dealer's pools, and you gave one: nothing was "
                f"sent; it has to be started with --engine {engine_with_preprocessing()[0].name} --pool"
            )
        digest = hashlib.sha256(str(message["outline"]).encode()).hexdigest()
        if digest not in preprocessing.networks(server.pool, "client"):
            raise EngineError(
                "the server offers another network, or another --answer, than your pool was dealt for: nothing was sent"
            )
        if not preprocessing.dealings(server.pool) & dealings:
            raise PeerBusyError(
                f"{server.address} is not the server that your pool was dealt for: ask that one, or add the other half "
                "of the dealing to its pools"
            )
    program = outline.parse(message["outline"])
    about = About.model_validate(message["about"])
    about = about.model_copy(update={"classes": tuple(map(printable, about.classes))})
    if len(about.classes) != program.classes or about.size != program.input_size:
        raise EngineError("the server's offer contradicts itself: install the same deepshare on both sides")
    if not about.largest <= LARGEST_NUMBER:
        raise EngineError(f"the server normalises pictures to numbers beyond {LARGEST_NUMBER:g}: nothing was sent")
    check_installed(engine)
    engine.check(program, options)
    return Offer(engine, options, program, about, dealings)
