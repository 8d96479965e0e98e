"""Two hosts on this machine, connected by a link with a delay and a rate: network namespaces and a relay.

Needs Linux, root, iproute2 and /dev/net/tun, but not the kernel's traffic control.
"""

import fcntl
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deepshare.private.cost import Link
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.party import Machine

_TUN = Path("/dev/net/tun")
_SET_INTERFACE, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_PACKET = 9000
_ADDRESSES: dict[Role, str] = {"server": "10.77.0.1", "client": "10.77.0.2"}


def missing() -> str | None:
    """Return the requirements that this machine lacks, or None."""
    if os.geteuid() != 0 or not _TUN.exists() or shutil.which("ip") is None:
        return "a link between two namespaces needs root, /dev/net/tun and the command ip"
    return None


@contextmanager
def joined(link: Link) -> Iterator[dict[Role, Machine]]:
    """Create two connected hosts for the duration of the context."""
    mark = os.getpid()
    with ExitStack() as stack:
        ends = []
        for role, address in _ADDRESSES.items():
            host = f"deepshare-{mark}-{role}"
            _ip("netns", "add", host)
            stack.callback(_ip, "netns", "del", host)
            name = f"ds{mark % 10**6}{role[0]}"
            ends.append(_open(name))
            stack.callback(os.close, ends[-1])
            _ip("link", "set", name, "netns", host)
            _ip("-n", host, "address", "add", f"{address}/24", "dev", name)
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", name, "mtu", str(_PACKET), "txqueuelen", "10000", "up")
        ended = threading.Event()
        relay = threading.Thread(target=_relay, args=(ends, link, ended), daemon=True)
        relay.start()
        stack.callback(relay.join)
        stack.callback(ended.set)
        yield {
            role: Machine(address, ("ip", "netns", "exec", f"deepshare-{mark}-{role}"))
            for role, address in _ADDRESSES.items()
        }


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _open(name: str) -> int:
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return end


def _relay(ends: list[int], link: Link, ended: threading.Event) -> None:
    """Forward every packet at its arrival time, given the packets before it, the rate and the delay."""
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    free = [0.0, 0.0]
    selector = selectors.DefaultSelector()
    for side, end in enumerate(ends):
        selector.register(end, selectors.EVENT_READ, side)
    while not ended.is_set():
        due = min((queue[0][0] for queue in waiting if queue), default=time.monotonic() + 0.05)
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            side = key.data
            for packet in _packets(ends[side]):
                free[side] = max(free[side], time.monotonic()) + 8 * len(packet) / link.rate
                waiting[side].append((free[side] + link.delay, packet))
        for side, queue in enumerate(waiting):
            while queue and queue[0][0] <= time.monotonic():
                os.write(ends[1 - side], queue.popleft()[1])


def _packets(end: int) -> Iterator[bytes]:
    try:
        while True:
            yield os.read(end, _PACKET)
    except BlockingIOError:
        return
