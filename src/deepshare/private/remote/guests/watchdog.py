"""The watchdog of a front door: breaks off guests in whose reading TLS comes to no end.

One read of TLS goes on for as long as records come that hold no content, such as updates of its keys, which cost their
sender next to nothing. It would hold up the door's thread, and so everybody, or a session's for good. A thread of its
own therefore looks ten times a second who is being read, and whoever is seen too often is cut off.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from deepshare.private.remote.guests.guest import Guest
from deepshare.private.remote.guests.journal import LOGGER, line

LOOK_SECONDS = 0.1
# Seconds of reading within a window: of all guests with one certificate at the door, and of one read in a session.
LONGEST_READ, WINDOW_SECONDS = 0.5, 5.0
BANNED_SECONDS = 60.0
_CHUNK, _MOST = 1 << 18, 1 << 26


class Watchdog:
    """Watches guests, within a `with` block.

    Args:
        guests: Gives those of the moment; called by its thread.

    Attributes:
        closing: Held by whoever closes a guest's socket: its number must not become another's while it is cut off.
    """

    def __init__(self, guests: Callable[[], Sequence[Guest]]) -> None:
        self._guests, self.closing = guests, threading.Lock()
        self._banned: dict[str, float] = {}
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Begin."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End."""
        self._over.set()

    def is_banned(self, guest: Guest) -> bool:
        """Whether somebody with this certificate was cut off just now."""
        return self._banned.get(guest.identity, 0.0) > time.monotonic()

    def _run(self) -> None:
        seen: Counter[Hashable] = Counter()
        since = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            if time.monotonic() > since + WINDOW_SECONDS:
                since = time.monotonic()
                seen.clear()
            for guest in self._guests():
                if begun := guest.channel.reading:
                    # A session reads much, but never for long at once.
                    key = (guest, begun) if guest.stage == "working" else guest.identity
                    seen[key] += 1
                    if seen[key] * LOOK_SECONDS >= LONGEST_READ:
                        self._cut_off(guest, begun)

    def _cut_off(self, guest: Guest, begun: float) -> None:
        if guest.name:
            now = time.monotonic()
            self._banned = {one: until for one, until in self._banned.items() if until > now}
            self._banned[guest.identity] = now + BANNED_SECONDS
        with self.closing:
            if guest.channel.reading != begun:
                return
            guest.channel.break_off()
            # What has arrived would still be read.
            with suppress(OSError):
                taken = 0
                while taken < _MOST and (more := socket.socket.recv(guest.socket, _CHUNK, socket.MSG_DONTWAIT)):
                    taken += len(more)
        LOGGER.warning(
            line(f"{guest.who}: it kept the server reading records of TLS without content, and is cut off"),
            extra={"fields": {"kind": "late"}},
        )
