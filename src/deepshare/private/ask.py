"""The owner of the images, asking a server."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import connect

from deepshare.data.about import About
from deepshare.errors import EngineError
from deepshare.private import outline
from deepshare.private.agree import run_party
from deepshare.private.control import PROTOCOL, SETTINGS, Control, Message, client_context
from deepshare.private.engine import Engine, Task, Tls, check_installed, find_engine
from deepshare.private.infer import check_images, total
from deepshare.private.local import free_ports
from deepshare.private.process import in_process
from deepshare.private.program import Program
from deepshare.private.result import Result

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Offer:
    """What a server offers.

    Attributes:
        engine: The engine that it uses.
        options: The engine's.
        program: An outline.
        about: What its images are like.
    """

    engine: Engine
    options: dict[str, str]
    program: Program
    about: About


class Client:
    """A connection to a server, after both have told who they are."""

    def __init__(self, control: Control, tls: Tls | None, pool: Path | None) -> None:
        self._control, self._tls, self._pool = control, tls, pool
        control.send({"protocol": PROTOCOL})
        self.offer = _offer(control.receive())

    def ask(self, images: Tensor) -> Result:
        """Have the server's network applied to images that it never sees.

        Args:
            images: (N, C, H, W), normalised; `offer.about` does it.

        Raises:
            EngineError: The images do not fit, or either party failed.
        """
        offer, control = self.offer, self._control
        check_images(images, offer.program)
        address = f"{control.local_host}:{free_ports(control.local_host, 1)[0]}"
        control.send({"images": len(images), "address": address, "outline": outline.digest(offer.program)})
        addresses = control.receive(None).get("start")
        if not isinstance(addresses, dict) or set(addresses) != {"server", "client"}:
            raise EngineError("the server gave no addresses: install the same deepshare")
        task = Task("client", offer.program, addresses, images, len(images), self._tls, offer.options, self._pool)
        mine, theirs = run_party(in_process(offer.engine), task, control)
        if mine.logits is None:
            raise EngineError("the engine gave no logits")
        return Result(mine.logits, total(offer.engine.name, offer.program, len(images), [theirs, mine]))


@contextmanager
def connected(server: str, tls: Tls | None = None, pool: Path | None = None) -> Iterator[Client]:
    """Connect to a server, HOST:PORT.

    Args:
        server: Where it is.
        tls: This party's certificates.
        pool: What was dealt to this party beforehand, for an engine that has such.

    Raises:
        EngineError: It is not there, or is not a server of deepshare.
    """
    context = None if tls is None else client_context(tls)
    scheme = "ws" if tls is None else "wss"
    try:
        connection = connect(f"{scheme}://{server}", ssl=context, proxy=None, open_timeout=CONNECT_SECONDS, **SETTINGS)
    except ssl.SSLCertVerificationError as error:
        cure = "take certificates of one authority, which name the host that you ask (private keys --host)"
        raise EngineError(f"{server}: no trust in its certificate ({error.verify_message}): {cure}") from error
    except ssl.SSLError as error:
        cure = "is it started with --tls, and with the same authority?"
        raise EngineError(f"{server}: no TLS with it ({error.reason or error}): {cure}") from error
    except (InvalidHandshake, InvalidMessage, InvalidURI) as error:
        cure = "is it deepshare private serve, and does it use --tls as you do?"
        raise EngineError(f"{server} does not answer as a server of deepshare ({error}): {cure}") from error
    except (OSError, TimeoutError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
        raise EngineError(f"no server at {server} ({why}): start deepshare private serve there") from error
    with connection:
        # The party's process runs in a folder of its own.
        yield Client(Control(connection, "server"), tls, None if pool is None else pool.absolute())


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
