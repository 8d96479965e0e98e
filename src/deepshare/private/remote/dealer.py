"""A dealer that runs: hands lots to a server and to its clients over TLS, each to its owner alone.

Both parties connect to the dealer, each with its certificate, whose name says who it is, and ask now and then:

    party:  {"protocol", "role"}    dealer: {"outline", "numbers", "session", "owner", "images"}, for the server "seed"
    party:  {"have"}                dealer: {"lots"}, then each lot; the party says {"got"} when it is on its disk

The server says with "have" how many fresh lots of each client it holds, {"fresh"}, of at most `MOST_OWNERS` at a time.
Whatever a client says of itself, the server holds twice its level for it at the most, and the spare lots of all its
images: it could fill the server's disk otherwise.

A half of a lot stays in the dealer's folder until its owner has it, and is overwritten then. A client gets its half
after the server has the other, so that it never names a lot which the server does not know. Killed at any point, each
of the three goes on where it was: halves are sent again, and whoever has one already only says so. The dealer takes no
part in inferences and sees nothing of them.
"""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from deepshare.errors import EngineError
from deepshare.files import sync_folder, write_atomically
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.lot import ID_BYTES, Holder, Lot
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.preprocessing.pool import (
    LOTS,
    clear,
    finished,
    overwrite,
    read_lot,
    write_lot,
)
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots
from deepshare.private.engines.gateshare.protocols.schedule import begin, send_lot
from deepshare.private.ir import outline
from deepshare.private.remote.guests.front_door import FrontDoor
from deepshare.private.remote.guests.guest import Guest, Reply, Work
from deepshare.private.remote.guests.journal import Journal
from deepshare.private.remote.refill import PROTOCOL
from deepshare.private.transport.channel import Channel, LaterError, PeerError, RefusalError
from deepshare.private.transport.tls import Tls

IDLE_SECONDS = 60.0
# Lots for one client at a time, so that others get theirs meanwhile.
MOST_AT_ONCE = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Dealership:
    """What a dealer has on disk: its dealing, and halves of lots that their owners do not have yet.

    Args:
        folder: For all of it.
        network: File of `private outline`.
        level: Lots that each client should have.
        images: Images that each client may ever ask.

    Raises:
        EngineError: The folder is of another network, another dealer deals from it, or it cannot be written.
    """

    def __init__(self, folder: Path, network: Path, *, level: int, images: int) -> None:
        self.program, self.number_format = network_file.read(network)
        self.steps = schedule(self.program, self.number_format)
        self._folder, self._level, self.images = folder, level, images
        self._spare = spare_lots(self.steps, images)
        self._fresh: dict[str, int] = {}
        self._lock, self._own = threading.Lock(), FileLock(folder / ".dealer.lock", thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._own.acquire(timeout=0)
            for half in ("server", "client"):
                for lots in (folder / half).glob(f"*/{LOTS}"):
                    clear(lots)
            self.dealer = LotDealer(self.steps, self._secrets(folder / "dealing.json"))
        except Timeout:
            raise EngineError(f"another dealer deals from {folder}: end that one, or give another folder") from None
        except OSError as error:
            raise EngineError(f"{folder} cannot be written ({error.strerror}): give another folder") from error

    def close(self) -> None:
        """Leave the folder to another dealer."""
        self._own.release()

    def _secrets(self, path: Path) -> tuple[bytes, bytes]:
        digest = outline.digest(self.program)
        if not path.exists():
            session, seed = os.urandom(ID_BYTES), os.urandom(SEED_BYTES)
            about = {"outline": digest, "session": session.hex(), "seed": seed.hex()}
            write_atomically(path, json.dumps(about).encode(), 0o600)
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["outline"] != digest:
            raise EngineError(f"{self._folder} is the dealer's folder of another network: give another")
        return bytes.fromhex(about["session"]), bytes.fromhex(about["seed"])

    def waiting(self, role: Holder, name: str) -> Iterator[tuple[str, Path]]:
        """Halves for a party: their owners and files. The server's are those of all clients."""
        for owner in sorted(path.name for path in (self._folder / "server").glob("*")) if role == "server" else [name]:
            for path in sorted(finished(self._half(role, owner) / LOTS)):
                held = self._half("server", owner) / LOTS / path.name
                if role == "server" or not held.exists():
                    yield owner, path

    def report(self, fresh: dict[str, int]) -> None:
        """Note how many fresh lots of clients the server holds."""
        with self._lock:
            self._fresh |= fresh

    def confirm(self, role: Holder, owner: str, path: Path) -> None:
        """Note that a party has a half on its disk, and delete it here."""
        with self._lock:
            if role == "server":
                self._fresh[owner] = self._fresh.get(owner, 0) + 1
            self.drop(path)

    def deal(self, name: str, have: int) -> None:
        """Deal for a client until it has its level, with all that is under way, and no more than it may ever have.

        What the client says cannot be checked, what the server holds for it can: twice the level, since the server's
        word may be older than the client's, and what the client has to spare, since lots that it discards stay there.
        """
        with self._lock:
            count = self._folder / "client" / name / "dealt"
            for role in ("server", "client"):
                (self._folder / role / name / LOTS).mkdir(parents=True, exist_ok=True, mode=0o700)
            dealt = int(count.read_text()) if count.exists() else 0
            under_way = {role: len(finished(self._half(role, name) / LOTS)) for role in ("server", "client")}
            missing = self._level - have - under_way["client"]
            room = 2 * self._level + self._spare - self._fresh.get(name, 0) - under_way["server"]
            left = self.images + self._spare - dealt
            for number in range(min(missing, room, left, MOST_AT_ONCE)):
                write_atomically(count, str(dealt + number + 1).encode(), 0o600)
                for_server, for_client = self.dealer.deal(1)
                # The server's first: a client's half alone would never be of use.
                write_lot(self._half("server", name), self.steps, for_server, "server")
                sync_folder(self._half("server", name) / LOTS)
                write_lot(self._half("client", name), self.steps, for_client, "client")

    def read(self, role: Holder, owner: str, path: Path) -> Lot:
        """A half that waits.

        Raises:
            LaterError: Its owner has it by another connection; or a power cut has damaged it, and both halves are
                deleted.
        """
        try:
            return read_lot(path, self.steps, role)
        except EngineError as error:
            if not path.exists():
                raise LaterError("another connection of yours fetches the same lots: ask again") from error
            for half in ("server", "client"):  # of either none was sent, or the server alone has a lot of no use
                self.drop(self._half(half, owner) / LOTS / path.name)
            raise LaterError("a lot was damaged, and is deleted: ask again") from error

    def drop(self, path: Path) -> None:
        """Overwrite a half and delete it; killed in between, it is no half any more."""
        with suppress(FileNotFoundError):
            overwrite(path.rename(path.with_name(f".{path.name}")))

    def _half(self, role: Holder, owner: str) -> Path:
        return self._folder / role / owner


class DealerService:
    """A dealer with an open port; `run` serves parties until `stop`.

    Args:
        dealership: Its lots.
        address: HOST:PORT to listen on.
        tls: Certificates.
        server: Name in the certificate of the server.
    """

    def __init__(self, dealership: Dealership, address: str, tls: Tls, server: str) -> None:
        self._dealership, self._server, self.journal = dealership, server, Journal()
        host, _, port = address.rpartition(":")
        if not host:
            raise EngineError(f"--listen {address}: give HOST:PORT, such as 127.0.0.1:{address.strip(':')}")
        try:
            listener = socket.create_server((host, int(port)), backlog=64)
        except (OSError, ValueError, OverflowError) as error:
            raise EngineError(f"cannot listen on {address} ({error}): give another --listen HOST:PORT") from error
        self.address = ":".join(map(str, listener.getsockname()[:2]))
        self._door = FrontDoor(
            listener,
            tls.server_context(),
            heard=self._heard,
            left=self._left,
            make_channel=lambda connection: Channel(connection, "party"),
        )

    def run(self) -> None:
        """Serve parties until `stop`."""
        try:
            self._door.run()
        finally:
            self._dealership.close()

    def stop(self) -> None:
        """End; from any thread."""
        self._door.stop()

    def _left(self, guest: Guest, reason: str) -> None:
        if reason:
            self.journal.refused(guest.who, "stranger" if guest.state is None else "gone", reason)

    def _heard(self, guest: Guest, message: dict[str, Any]) -> Reply | Work:
        if guest.state is None:
            return self._greet(guest, message)
        have = message.get("have")
        if type(have) is not int or not 0 <= have < 1 << 32:
            raise RefusalError("say how many lots you have")
        fresh = _fresh(message) if guest.state == "server" else {}
        return Work(lambda: self._serve(guest, have, fresh))

    def _greet(self, guest: Guest, hello: dict[str, Any]) -> Reply:
        role = hello.get("role")
        if hello.get("protocol") != PROTOCOL or role not in ("server", "client"):
            raise RefusalError("this dealer speaks another protocol: install the same deepshare")
        if (role == "server") != (guest.name == self._server) or not _NAME.fullmatch(guest.name):
            raise RefusalError("your certificate is not that of a client, or of the server, of this dealer")
        guest.state = role
        one = self._dealership
        said = {
            "outline": outline.dump(one.program),
            "numbers": one.number_format.dump(),
            "session": one.dealer.id.hex(),
            "owner": guest.name,
            "images": one.images,
        }
        body = json.dumps(said | ({"seed": one.dealer.seed.hex()} if role == "server" else {})).encode()
        reply = Reply((guest.channel.message_header(len(body)), body), IDLE_SECONDS)
        begin(one.dealer.id, one.steps, guest.channel)
        return reply

    def _serve(self, guest: Guest, have: int, fresh: dict[str, int]) -> None:
        """Send a party what waits for it; in a thread."""
        role: Holder = guest.state
        one, channel = self._dealership, guest.channel
        try:
            if role == "server":  # here, since it waits while lots are dealt, and the door's thread must not
                one.report(fresh)
            else:
                one.deal(guest.name, have)
            halves = list(one.waiting(role, guest.name))[:MOST_AT_ONCE]
            channel.send_message({"lots": len(halves)})
            for owner, path in halves:
                channel.send_message({"owner": owner, "images": one.images})
                send_lot(channel, one.steps, one.read(role, owner, path), role)
                if channel.receive_message().get("got") != path.name:
                    raise RefusalError("a lot was not confirmed: ask again")
                one.confirm(role, owner, path)
            self._door.listen_to(guest, IDLE_SECONDS)
        except RefusalError as error:
            self._door.refuse(guest, error)
        except (PeerError, ConnectionError):
            self._door.leave(guest)
        except Exception as error:
            self.journal.failed(guest.who, error)
            self._door.refuse(guest, RefusalError("the dealer failed, and its log says why: ask again"))


def _fresh(message: dict[str, Any]) -> dict[str, int]:
    """What a server says that it holds of clients."""
    fresh = message.get("fresh")
    if not isinstance(fresh, dict) or not all(type(count) is int and count >= 0 for count in fresh.values()):
        raise RefusalError("say how many fresh lots you have of each client")
    return fresh
