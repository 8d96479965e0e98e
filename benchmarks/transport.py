"""Messages of one inference of ResNet-18 at 32x32 over plain sockets and over websockets, in one run.

    python benchmarks/transport.py [--json]

Sixteen messages each way, 7.9 MB in all, between two processes on this machine. Prints CPU time of one party and wall
time, as medians of a few.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from websockets.sync.client import connect as ws_connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as ws_serve

from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import accept, connect, listen

MESSAGES, SIZE, REPEATS = 16, 491_520 * 8 // 16, 9
SETTINGS = {"compression": None, "max_size": 2**26, "ping_interval": None}


def cpu() -> float:
    """Seconds that this process has computed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def times(exchange: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Median seconds of an inference's messages: CPU, and by the wall clock."""
    found = []
    for _ in range(repeats):
        began, clock = cpu(), time.perf_counter()
        for _ in range(MESSAGES):
            exchange()
        found.append((cpu() - began, time.perf_counter() - clock))
    return statistics.median(f[0] for f in found), statistics.median(f[1] for f in found)


def serve(kind: str, port: int, repeats: int) -> None:
    """The other process: answers every message."""
    payload = os.urandom(SIZE)
    if kind == "sockets":
        with listen(f"127.0.0.1:{port}") as listener:
            channel = accept(listener, "client", None)
            for _ in range(repeats * MESSAGES):
                channel.receive(0, SIZE)
                channel.send(0, payload)
        return

    def answer(connection: ServerConnection) -> None:
        for _ in range(repeats * MESSAGES):
            connection.recv()
            connection.send(payload)

    with ws_serve(answer, "127.0.0.1", port, **SETTINGS) as server:  # type: ignore[arg-type]
        server.serve_forever()


def wait_for(port: int) -> None:
    """Until someone listens: websockets does not try again by itself."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def measure(kind: str, repeats: int) -> tuple[float, float]:
    """CPU and wall clock of one transport."""
    (port,), payload = free_ports("127.0.0.1", 1), os.urandom(SIZE)
    other = subprocess.Popen([sys.executable, __file__, "--serve", kind, str(port), str(repeats)])
    try:
        if kind == "sockets":
            channel = connect(f"127.0.0.1:{port}", "server", None)

            def exchange() -> None:
                channel.send(0, payload)
                channel.receive(0, SIZE)

            return times(exchange, repeats)
        wait_for(port)
        with ws_connect(f"ws://127.0.0.1:{port}", proxy=None, **SETTINGS) as connection:  # type: ignore[arg-type]

            def swap() -> None:
                connection.send(payload)
                connection.recv()

            return times(swap, repeats)
    finally:
        other.kill()
        other.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tiny", action="store_true", help="once: to see that it works")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], *map(int, options.serve[1:]))
        return
    repeats = 1 if options.tiny else REPEATS
    figures = {
        kind: dict(zip(("cpu", "wall"), measure(kind, repeats), strict=True)) for kind in ("sockets", "websockets")
    }
    if options.json:
        print(json.dumps(figures))
        return
    for kind, found in figures.items():
        print(f"{kind:12} {found['cpu'] * 1e3:7.1f} ms of CPU {found['wall'] * 1e3:7.1f} ms by the wall clock")


if __name__ == "__main__":
    main()
