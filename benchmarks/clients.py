"""Throughput and memory of one gateshare server with many concurrent clients.

    python benchmarks/clients.py                         # 1, 4, 16 and 64 clients of ResNet-18 of width 16, 1,536 gates
    python benchmarks/clients.py --dealer                # a dealer deals beside, in the place of pools dealt before
    python benchmarks/clients.py --clients 8 --images 10 --json
    python benchmarks/clients.py --without-avx512        # as on a processor that has AVX2 only
    python benchmarks/clients.py --shell 10              # `deepshare private ask` of one picture, from start to end

The server and each client are processes that share the cores of this machine, so the figures include the clients' own
work (all their offline products), with `--dealer` the dealer's too: a server whose clients have their own machines is
faster. Each client sends one image after the other, in one session over TLS. "online" is the median time from an image
to its logits. "convolutions" is the server's time in linear layers for an image if nobody else
computes, and "times" how many of these pass for each image that is answered.
"""

import argparse
import json
import multiprocessing
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import avx512
import torch
from PIL import Image

from deepshare import plan, share, zoo
from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LotPool, write_pools
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import Server, connected
from deepshare.private.remote.dealer import DealerService, Dealership
from deepshare.private.remote.guests.journal import start_logging
from deepshare.private.remote.refill import Refill
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.tls import tls_of

SIZE, WIDTH, GATES, HOST = (3, 32, 32), 16, 1_536, "127.0.0.1"
# Lots that a client has beforehand, and its dealer keeps it at.
LEVEL = 2
# Some lots cannot be used. A client asks when it has so many, so that it hardly ever runs out in the middle.
SPARE = 3
# Imported once for all processes.
PRELOAD = [name for name in sys.modules if name.startswith(("torch", "deepshare.", "numpy"))]


@dataclass(frozen=True)
class Row:
    """Figures for one number of clients."""

    clients: int
    images: int
    seconds: float
    images_a_second: float
    online: float
    slowest_online: float
    convolutions: float
    times: float
    server_megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--images", type=int, default=8, help="that each client asks")
    parser.add_argument("--dealer", action="store_true", help="deal while they ask, over TLS")
    parser.add_argument("--shell", type=int, default=0, metavar="N", help="time N calls of private ask instead")
    parser.add_argument("--without-avx512", action="store_true", help="all parties as on a processor with AVX2 only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="two clients of width 4, two images each: does it work?")
    options = parser.parse_args()
    avx512.hide(options.without_avx512)
    if options.tiny:
        options.clients, options.images = [2], 2
    width = 4 if options.tiny else WIDTH
    if options.shell:
        seconds, cpu = (list(column) for column in zip(*time_shell(options.shell, width), strict=True))
        median, slowest, busy = statistics.median(seconds), max(seconds), statistics.median(cpu)
        words = f"median {median:.2f} s, least {min(seconds):.2f} s, slowest {slowest:.2f} s; CPU {busy:.2f} s"
        print(
            json.dumps({"seconds": seconds, "cpu": cpu}) if options.json else f"private ask, {len(cpu)} calls: {words}"
        )
        return
    # In a session of its own, beside which nothing is dealt: among others it would wait for cores.
    alone = measure(1, max(options.images, 4), False, width, None).convolutions
    rows = (measure(clients, options.images, options.dealer, width, alone) for clients in options.clients)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    heads = ("clients", "images", "images/s", "online", "slowest", "convolutions", "times", "server MB")
    print("".join(f"{head:>14}" for head in heads), flush=True)
    for row in rows:  # each as soon as it is measured
        cells = (
            f"{row.clients}",
            f"{row.images}",
            f"{row.images_a_second:.2f}",
            f"{row.online:.2f} s",
            f"{row.slowest_online:.2f} s",
            f"{row.convolutions:.3f} s",
            f"{row.times:.2f}",
            f"{row.server_megabytes:.0f}",
        )
        print("".join(f"{cell:>14}" for cell in cells), flush=True)


def network(width: int) -> Program:
    """Build the same network in every process."""
    torch.manual_seed(0)
    model = zoo.resnet18(width=width, num_classes=100).eval()
    return translate(share(model, plan(model, SIZE, GATES), start="uniform"), SIZE)


def measure(clients: int, images: int, with_dealer: bool, width: int, alone: float | None) -> Row:
    """Deal, start the server and all clients, and wait for them.

    Args:
        clients: How many.
        images: Of each.
        with_dealer: Whether to deal while they ask.
        width: Of the network.
        alone: Seconds of the server's convolutions for an image; None to measure them here.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    names = ["client"] if clients == 1 else [f"client-{number + 1}" for number in range(clients)]
    with tempfile.TemporaryDirectory() as where, ExitStack() as stack:
        folder, (port, dealer) = Path(where), free_ports(HOST, 2)

        def start(run: Callable[..., None], *arguments: Any) -> tuple[Connection, int | None]:
            own, other = context.Pipe()
            process = context.Process(target=run, args=(folder, *arguments, other), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            return own, process.pid

        make_keys(folder / "keys", [HOST], clients)
        network_file.write(folder / "network.json", network(width))
        if with_dealer:
            start(deal, dealer, images)
            start(refill, dealer, "server")
            while not (folder / "pools" / "server" / ABOUT).exists():
                time.sleep(0.1)
        else:
            program, number_format = network_file.read(folder / "network.json")
            write_pools(folder / "pools", program, number_format, images, lambda *_: None, clients)
        served, server = start(serve, port, width)
        served.recv()
        asking = [start(ask, port, dealer if with_dealer else None, name, images)[0] for name in names]
        for one in asking:
            one.recv()
        started = time.perf_counter()
        for one in asking:
            one.send(None)
        times = [seconds for one in asking for seconds in one.recv()]
        took = time.perf_counter() - started
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server}/status").read_text())
    online, convolutions = ([pair[place] for pair in times] for place in (0, 1))
    count, linear = clients * images, statistics.median(convolutions) if alone is None else alone
    return Row(
        clients=clients,
        images=count,
        seconds=took,
        images_a_second=count / took,
        online=statistics.median(online),
        slowest_online=max(online),
        convolutions=linear,
        times=took / count / linear,
        server_megabytes=int(peak[1]) / 1e3 if peak else float("nan"),
    )


def time_shell(calls: int, width: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of `deepshare private ask` for one picture, each a process of its own, start included."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as where, ExitStack() as stack:
        folder, (port,) = Path(where), free_ports(HOST, 1)
        program = network(width)
        make_keys(folder / "keys", [HOST])
        write_pools(folder / "pools", program.outline(), calibrate(program), calls + 1, lambda *_: None)
        Image.effect_noise(SIZE[1:], 50).convert("RGB").save(folder / "picture.png")
        own, other = context.Pipe()
        server = context.Process(target=serve, args=(folder, port, width, other), daemon=True)
        server.start()
        stack.callback(server.join)
        stack.callback(server.kill)
        own.recv()
        command = [sys.executable, "-m", "deepshare", "private", "ask", str(folder / "picture.png")]
        command += ["--server", f"{HOST}:{port}", "--pool", str(folder / "pools/client")]
        command += ["--tls", str(folder / "keys/client")]
        times = []
        for _ in range(calls + 1):
            started, before = time.perf_counter(), _cpu_of_children()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            times.append((time.perf_counter() - started, _cpu_of_children() - before))
    return times[1:]  # the first one also receives the masked weights, which the pool keeps


def _cpu_of_children() -> float:
    """CPU seconds of processes that have ended; the server's are not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def deal(folder: Path, port: int, images: int, _: Connection) -> None:
    """Run the dealer's process."""
    dealership = Dealership(
        folder / "dealer", folder / "network.json", level=min(LEVEL, images) + SPARE, images=images + 2 * SPARE
    )
    tls = tls_of(folder / "keys" / "dealer")
    DealerService(dealership, f"{HOST}:{port}", tls, "DeepShare server").run()


def refill(folder: Path, port: int, name: str, _: Connection | None = None) -> None:
    """Keep a pool full; in a process, or in a thread of a client."""
    party: Holder = "server" if name == "server" else "client"
    while True:
        with suppress(EngineError):
            one = Refill(folder / "pools" / name, party, f"{HOST}:{port}", tls_of(folder / "keys" / name))
            with closing(one):
                one.keep_full(0.5)
        time.sleep(0.1)


def serve(folder: Path, port: int, width: int, ready: Connection) -> None:
    """Run the server's process."""
    about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(100))))
    start_logging("error", as_json=False)
    service = ModelServer(
        engine=find_engine("gateshare"),
        options={"dealer": "pool"},
        networks={"network": Network(network(width), about)},
        tls=tls_of(folder / "keys" / "server"),
        pools=[folder / "pools" / "server"],
    )
    with service.listen(HOST, port) as server:
        ready.send(None)
        server.serve_forever()


def ask(folder: Path, port: int, dealer: int | None, name: str, images: int, parent: Connection) -> None:
    """Run a client's process, in one session; sends seconds online and in the server's linear layers."""
    torch.set_num_threads(1)  # even one core is more than its share here
    pool = folder / "pools" / name
    if dealer is not None:
        threading.Thread(target=refill, args=(folder, dealer, name), daemon=True).start()
        while not (pool / ABOUT).exists():
            time.sleep(0.1)
    lots = LotPool(pool, "client", network_file.read(folder / "network.json")[0])

    def wait(count: int) -> None:
        while lots.left() < count:
            time.sleep(0.1)

    wait(min(LEVEL, images))
    found = []
    with connected(Server(address=f"{HOST}:{port}", pool=pool, tls=tls_of(folder / "keys" / name))) as client:
        parent.send(None)
        parent.recv()
        for _ in range(images):
            wait(SPARE if dealer is not None else 1)
            cost = client.ask(torch.randn(1, *SIZE)).cost
            linear = [layer.part.seconds for layer in cost.layers if layer.kind in ("Convolution", "Linear")]
            found.append((cost.seconds, sum(linear)))
    parent.send(found)


if __name__ == "__main__":
    main()
