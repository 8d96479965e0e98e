"""Strangers at a front door: guests that have shown no certificate, or have not said anything, by their hosts."""

from deepshare.private.remote.guests.guest import Guest


class Strangers:
    """Strangers, the oldest of each host first. Nothing but `busiest` takes longer where there are more of them."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[Guest, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, guest: Guest) -> None:
        """Note a newcomer."""
        self._hosts.setdefault(guest.host, {})[guest] = None
        self._count += 1

    def remove(self, guest: Guest) -> None:
        """Forget a guest, if it is one of them: it is gone, or no stranger any more."""
        theirs = self._hosts.get(guest.host, {})
        if guest in theirs:
            del theirs[guest]
            self._count -= 1
            if not theirs:
                del self._hosts[guest.host]

    def of(self, host: str) -> int:
        """Number of strangers of a host."""
        return len(self._hosts.get(host, ()))

    def busiest(self) -> str:
        """The host that has most; there must be some."""
        return max(self._hosts, key=lambda host: len(self._hosts[host]))

    def oldest(self, host: str) -> Guest:
        """The first that came of a host that has some."""
        return next(iter(self._hosts[host]))

    def newest(self, host: str) -> Guest:
        """The last that came of a host that has some."""
        return next(reversed(self._hosts[host]))
