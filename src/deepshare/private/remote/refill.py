"""A party's side of a dealer that runs: fill a pool from it, once or for as long as the pool is used."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from deepshare.errors import EngineError
from deepshare.files import sync_folder
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import SEED_BYTES
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing.marks import FILE, Marks
from deepshare.private.engines.gateshare.preprocessing.pool import (
    ABOUT,
    CERTIFICATES,
    LOTS,
    check_party,
    clear,
    write_about,
    write_lot,
)
from deepshare.private.engines.gateshare.protocols.schedule import Schedule, begin, receive_lot, session_id
from deepshare.private.ir import outline
from deepshare.private.remote.session import LONGEST_OFFER
from deepshare.private.transport.channel import Channel, PeerBusyError, RefusalError, reach
from deepshare.private.transport.tls import Tls

PROTOCOL = 2
# Clients in one report of a server, so that it stays below the longest request.
MOST_OWNERS = 400


class DealerGoneError(EngineError):
    """The dealer is not there, or no longer; it may come back."""


class Refill:
    """A connection of one party to its dealer.

    Args:
        pool: The party's pool; made if it is not there.
        party: The party.
        dealer: HOST:PORT.
        tls: The party's certificates.

    Raises:
        DealerGoneError: The dealer is not there.
        EngineError: The pool is of another dealing, is being filled already, or cannot be written.
    """

    def __init__(self, pool: Path, party: Holder, dealer: str, tls: Tls) -> None:
        self._pool, self._party, self._reported = pool, party, 0
        if (pool / ABOUT).exists():
            check_party(pool, party)
        self._lock = FileLock(pool / ".filling.lock", thread_local=False)
        try:
            self._channel = reach(dealer, "dealer", tls)
        except OSError as error:
            raise DealerGoneError(
                f"no dealer at {dealer} ({error.strerror or error}): start deepshare private dealer"
            ) from error
        try:
            self._channel.send_message({"protocol": PROTOCOL, "role": party})
            self._steps = self._agree(self._channel.receive_message(LONGEST_OFFER))
        except ConnectionError as error:
            self._hang_up()
            raise DealerGoneError(
                f"{dealer} hung up ({error}): is it a dealer, with certificates of one authority?"
            ) from error
        except OSError as error:
            self._hang_up()
            raise self._unwritten(error) from error
        except BaseException:
            self._hang_up()
            raise
        self._marks = Marks(pool)

    def fill(self) -> int:
        """Ask for lots once; returns how many came."""
        channel = self._channel
        try:
            channel.send_message({"have": len(self._marks.fresh())} | self._report())
            count = channel.receive_message().get("lots")
            if type(count) is not int or not 0 <= count < 1 << 16:
                raise EngineError("the dealer does not say how many lots it sends: install the same deepshare")
            for _ in range(count):
                self._take(channel)
        except ConnectionError as error:
            raise DealerGoneError(f"{error}: ask again") from error
        except OSError as error:
            raise self._unwritten(error) from error
        except (RefusalError, PeerBusyError) as error:  # it hung up within a frame, or says to ask again
            raise DealerGoneError(str(error)) from error
        return count

    def keep_full(self, every: float) -> None:
        """Ask again and again, until interrupted or the dealer is gone."""
        while True:
            if not self.fill():
                time.sleep(every)

    def close(self) -> None:
        """Hang up."""
        self._hang_up()
        self._marks.close()

    def _hang_up(self) -> None:
        self._channel.close()
        self._lock.release()

    def _unwritten(self, error: OSError) -> EngineError:
        return EngineError(f"{self._pool} cannot be written ({error.strerror}): give another folder")

    def _report(self) -> dict[str, Any]:
        """What a server holds of its clients, of some of them each time if they are many."""
        if self._party == "client":
            return {}
        fresh = [(stock.owner, stock.fresh) for stock in self._marks.stock()]
        begin, self._reported = self._reported, self._reported + MOST_OWNERS
        if self._reported >= len(fresh):
            self._reported = 0
        return {"fresh": dict(fresh[begin : begin + MOST_OWNERS])}

    def _take(self, channel: Channel) -> None:
        said = channel.receive_message()
        owner, images = said.get("owner"), said.get("images")
        if not isinstance(owner, str) or type(images) is not int:
            raise EngineError("the dealer does not say whose lots these are: install the same deepshare")
        lot = receive_lot(channel, self._steps, 1, self._party)
        # One that is known already was sent before, and the dealer was not told: it may be spent by now.
        if self._marks.state(lot.id) is None:
            write_lot(self._pool, self._steps, lot, self._party)
            sync_folder(self._pool / LOTS)
            self._marks.add([lot.id], owner, images)
        channel.send_message({"got": lot.id.hex()})

    def _agree(self, said: dict[str, Any]) -> Schedule:
        """Make the pool, or check that it belongs to this dealing."""
        try:
            program = outline.parse(said["outline"])
            number_format = NumberFormat.parse(said["numbers"], program)
            session, images = session_id(said), int(said["images"])
            seed = str(said.get("seed", ""))
            owner = str(said["owner"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError("what the dealer says is damaged: install the same deepshare") from error
        if self._party == "server" and len(bytes.fromhex(seed)) != SEED_BYTES:
            raise EngineError("the dealer gave no seed: install the same deepshare")
        steps = schedule(program, number_format)
        there = (self._pool / ABOUT).exists()
        if there and check_party(self._pool, self._party).get("session") != session.hex():
            raise EngineError(f"{self._pool} is of another dealing: give another folder")
        (self._pool / LOTS).mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise EngineError(f"another private pool fill is filling {self._pool}: end that one first") from None
        if not (self._pool / ABOUT).exists():
            self._pool.chmod(0o700)
            if not (self._pool / FILE).exists():
                with closing(Marks.create(self._pool, {} if self._party == "server" else {owner: images})):
                    pass
            own: dict[str, object] = {"images": images}
            if self._party == "server":  # the dealer knows its clients by their certificates
                own = {"seed": seed, "owners": CERTIFICATES}
            write_about(self._pool, self._party, session, program, number_format, own)
        clear(self._pool / LOTS)
        begin(session, steps, self._channel)
        return steps
