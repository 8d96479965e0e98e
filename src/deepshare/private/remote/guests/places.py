"""Places for clients that are answered at once, and turns at what few may do at once.

Both are limited for each certificate: nobody can hold up the others, however long it stays.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from deepshare.private.remote.guests.guest import Guest
from deepshare.private.transport.channel import LaterError

# Where all places are taken, a client gives its own up that has had no images for so long; or that has kept the server
# waiting for so long, if its certificate has more places than that of whoever comes.
SPARED_SECONDS = 5.0
# Somebody who waits for a turn asks again within this time, or does not wait any more.
KNOCK_SECONDS = 5.0


class Places:
    """Places for guests.

    Args:
        most: How many there are.
        each: How many of them with one certificate; None for no limit.
        send_away: Sends a guest away, if nobody works for it; returns whether.
        cut_off: Cuts a guest off, whose thread waits for it.
    """

    def __init__(
        self,
        most: int,
        each: int | None,
        send_away: Callable[[Guest, LaterError], bool],
        cut_off: Callable[[Guest], None],
    ) -> None:
        self._most, self._each, self._send_away, self._cut_off = most, each, send_away, cut_off
        self._parked: dict[Guest, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._parked)

    def give(self, guest: Guest) -> None:
        """Give a guest a place; where all are taken, that of one that makes no use of it.

        Raises:
            LaterError: There is none for it.
        """
        with self._lock:
            if guest in self._parked:
                return
            taken = Counter(other.identity for other in self._parked)
        if self._each is not None and taken[guest.identity] >= self._each:
            raise LaterError(f"{self._each} clients with this certificate are answered already: ask again later")
        if taken.total() >= self._most and not (self._free_one() or self._free_late(taken, guest)):
            raise LaterError(f"{self._most} clients are being answered already: ask again later")
        with self._lock:
            self._parked[guest] = 0.0

    def park(self, guest: Guest, *, parked: bool) -> None:
        """Note that a guest has no images yet, or that it has some now."""
        with self._lock:
            if guest in self._parked:
                self._parked[guest] = time.monotonic() if parked else 0.0

    def leave(self, guest: Guest) -> None:
        """Take the guest's place back, if it has one."""
        with self._lock:
            self._parked.pop(guest, None)

    def _free_one(self) -> bool:
        now = time.monotonic()
        with self._lock:
            idle = {guest: since for guest, since in self._parked.items() if 0 < since < now - SPARED_SECONDS}
        error = LaterError("others are waiting for your place: connect again")
        return any(self._send_away(guest, error) for guest in sorted(idle, key=lambda guest: idle[guest]))

    def _free_late(self, taken: Counter[str], newcomer: Guest) -> bool:
        """Free the place of the slowest among the guests whose certificate has most."""
        fair = taken[newcomer.identity] + 1
        with self._lock:
            late = [one for one in self._parked if taken[one.identity] > fair and one.waited > SPARED_SECONDS]
        if not late:
            return False
        slowest = max(late, key=lambda one: (taken[one.identity], one.waited))
        self.leave(slowest)
        self._cut_off(slowest)
        return True


@dataclass(eq=False)
class Turn:
    """Somebody's turn.

    Attributes:
        identity: Whose.
        since: When it began.
    """

    identity: str
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self.since


class Turns:
    """Turns at something that few clients may do at once: one for each certificate, in the order of asking.

    Args:
        at_once: How many.
        what: What they do, for those who have to wait.
    """

    def __init__(self, at_once: int, what: str) -> None:
        self._at_once, self._what = at_once, what
        self._taken: list[Turn] = []
        self._waiting: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, identity: str) -> Turn:
        """Take a turn.

        Raises:
            LaterError: All are taken, or others wait for them; whoever asks again soon keeps its place in the line.
        """
        with self._lock:
            self._forget()
            mine = any(turn.identity == identity for turn in self._taken)
            line = list(self._waiting)
            ahead = line.index(identity) if identity in line else len(line)
            if mine or len(self._taken) + ahead >= self._at_once:
                if not mine:
                    self._waiting[identity] = time.monotonic()
                raise LaterError(f"{self._what} with another client: ask again later")
            self._waiting.pop(identity, None)
            turn = Turn(identity)
            self._taken.append(turn)
            return turn

    def leave(self, turn: Turn | None) -> None:
        """Give a turn up, if there is one that was not given up yet."""
        with self._lock:
            self._taken = [other for other in self._taken if other is not turn]

    @property
    def awaited(self) -> bool:
        """Whether somebody waits who has none."""
        with self._lock:
            self._forget()
            return bool(self._waiting)

    def _forget(self) -> None:
        now = time.monotonic()
        self._waiting = {one: at for one, at in self._waiting.items() if at > now - KNOCK_SECONDS}
