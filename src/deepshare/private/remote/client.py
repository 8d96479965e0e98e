"""The images' owner, asking a server."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError
from torch import Tensor
from websockets.exceptions import ConnectionClosed, InvalidMessage, WebSocketException
from websockets.sync.client import ClientConnection, connect

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.api import check_images
from deepshare.private.cost import Result, total
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.session import PROTOCOL, SETTINGS, Control, Message, run_session
from deepshare.private.runtime.engine import Engine, Role, Task, Tls, check_installed, find_engine
from deepshare.private.runtime.party import ProcessParty, free_ports


@dataclass(frozen=True)
class Offer:
    """A server's description of itself.

    Attributes:
        engine: The engine that it uses.
        options: Options of the engine.
        program: An outline.
        about: Description of its images.
    """

    engine: Engine
    options: dict[str, str]
    program: Program
    about: About

    @property
    def uses_pools(self) -> bool:
        """Whether the parties use pools that a dealer prepared in advance."""
        preprocessing = self.engine.preprocessing
        return preprocessing is not None and self.options == preprocessing.options


class ModelClient:
    """A connection to a server whose offer has arrived."""

    def __init__(self, control: Control, host: str, tls: Tls | None, pool: Path | None) -> None:
        self._control, self._host, self._tls, self._pool = control, host, tls, pool
        control.send({"protocol": PROTOCOL})
        self.offer = _offer(control.receive())

    def ask(self, images: Tensor) -> Result:
        """Classify images with the server's network; the server never sees them.

        Args:
            images: (N, C, H, W), normalised; `offer.about` does it.

        Raises:
            EngineError: The images do not fit, or either party failed.
        """
        offer, control = self.offer, self._control
        if self._pool is not None and not offer.uses_pools:
            raise EngineError(
                f"the server computes with {offer.engine.name} without a dealer's pools, and you gave one: nothing was "
                "sent; it has to be started with --engine gateshare --pool"
            )
        check_images(images, offer.program)
        address = f"{control.local_host}:{free_ports(control.local_host, 1)[0]}"
        control.send({"images": len(images), "address": address, "outline": outline.digest(offer.program)})
        port, token = _start(control.receive(None))
        # The host is the one that was asked: it is on the certificate, and the server may not know it itself.
        addresses: dict[Role, str] = {"server": f"{self._host}:{port}", "client": address}
        task = Task(
            role="client",
            program=offer.program,
            addresses=addresses,
            images=images,
            count=len(images),
            tls=self._tls,
            options=offer.options,
            extras={"pool": self._pool, "token": token},
        )
        own, peer = run_session(ProcessParty(offer.engine.name, task), task, control)
        if own.logits is None:
            raise EngineError("the engine gave no logits")
        return Result(own.logits, total(offer.engine.name, offer.program, len(images), [peer, own]))


@contextmanager
def connected(server: str, tls: Tls | None = None, pool: Path | None = None) -> Iterator[ModelClient]:
    """Connect to a server.

    Args:
        server: Its HOST:PORT.
        tls: This party's certificates.
        pool: This party's pool, for an engine with preprocessing.

    Raises:
        EngineError: It is not there, or is not a server of deepshare.
    """
    host = _host(server)
    with _opened(server, tls) as connection:
        # The party's process runs in a folder of its own.
        yield ModelClient(Control(connection, "server"), host, tls, None if pool is None else pool.absolute())


def _host(server: str) -> str:
    try:
        where = urlsplit(f"//{server}")
        if where.hostname and where.port:
            return where.hostname
    except ValueError:  # a port that is none, or a bracket that does not end
        pass
    raise EngineError(f"{server} is no address of a server: give HOST:PORT, such as 192.0.2.7:8443")


def _opened(server: str, tls: Tls | None) -> ClientConnection:
    context = None if tls is None else tls.client_context()
    scheme = "ws" if tls is None else "wss"
    try:
        connection: ClientConnection = connect(f"{scheme}://{server}", ssl=context, proxy=None, **SETTINGS)
    except (WebSocketException, OSError) as error:
        raise EngineError(_trouble(server, tls, error)) from error
    return connection


def _trouble(server: str, tls: Tls | None, error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            cure = "take certificates of one authority, which name the host that you ask (private keys --host)"
            return f"{server}: no trust in its certificate ({error.verify_message}): {cure}"
        # In TLS 1.3 a server looks at the client's certificate after the client's handshake, and may just hang up.
        case ConnectionClosed() | InvalidMessage(__cause__=EOFError()) if tls is not None:
            cure = "take one of the authority that the server has (both folders of one private keys)"
            return f"{server}: the server does not trust your certificate: {cure}"
        case ssl.SSLError():
            cure = "is it started with --tls, and with the same authority?"
            return f"{server}: no TLS with it ({error.reason or error}): {cure}"
        case WebSocketException():
            cure = "is it deepshare private serve, and does it use --tls as you do?"
            return f"{server} does not answer as a server of deepshare ({error}): {cure}"
    why = getattr(error, "strerror", None) or "no answer"
    return f"no server at {server} ({why}): start deepshare private serve there"


def _start(message: Message) -> tuple[int, bytes]:
    """The port of the server's part, and the token to present there."""
    try:
        return int(message["start"]["server"].rpartition(":")[2]), bytes.fromhex(message["token"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError("the server gave no port: install the same deepshare") from error


def _offer(message: Message) -> Offer:
    if message.get("protocol") != PROTOCOL:
        raise EngineError(
            f"the server speaks protocol {message.get('protocol')}, not {PROTOCOL}: install the same deepshare"
        )
    try:
        engine = find_engine(message["engine"])
        about = About.model_validate(message["about"])
        options = {str(key): str(value) for key, value in message["options"].items()}
        program = outline.parse(message["outline"])
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise EngineError("the server's offer is damaged: install the same deepshare on both sides") from error
    if len(about.classes) != program.operations[-1].shape[0] or about.size != program.input_size:
        raise EngineError("the server's offer contradicts itself: install the same deepshare on both sides")
    check_installed(engine)
    engine.check(program, options)
    return Offer(engine, options, program, about)
