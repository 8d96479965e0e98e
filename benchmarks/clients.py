"""Throughput and memory of one gateshare server with many concurrent clients.

    python benchmarks/clients.py                         # 1, 4 and 16 clients of ResNet-18 of width 16, 1,536 gates
    python benchmarks/clients.py --clients 8 --images 10 --json

The server and each client are processes that share the cores of this machine, so the figures include the clients' own
work (all their offline products): a server whose clients have their own machines is faster. Each client sends one image
after the other, in one session. "online" is the median time from an image to its logits.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from deepshare import plan, share, zoo
from deepshare.data.images import About
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import Server, connected
from deepshare.private.remote.operation import start_logging
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.runtime.engine import find_engine

SIZE, GATES = (3, 32, 32), 1_536
POOL = {"dealer": "pool"}


@dataclass(frozen=True)
class Row:
    """Figures for one number of clients."""

    clients: int
    images: int
    seconds: float
    images_a_second: float
    online: float
    slowest_online: float
    server_megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--images", type=int, default=8, help="that each client asks")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="two clients, one image each: to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.clients, options.images = [2], 1
    rows = [measure(clients, options.images) for clients in options.clients]
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'clients':>8}{'images':>8}{'images/s':>10}{'online':>9}{'slowest':>9}{'server MB':>11}")
    for row in rows:
        times = f"{row.images_a_second:>10.2f}{row.online:>8.2f}s{row.slowest_online:>8.2f}s"
        print(f"{row.clients:>8}{row.images:>8}{times}{row.server_megabytes:>11.0f}")


def network() -> Program:
    """Build the same network in every process."""
    torch.manual_seed(0)
    model = zoo.resnet18(width=16, num_classes=100).eval()
    return translate(share(model, plan(model, SIZE, GATES), start="uniform"), SIZE)


def measure(clients: int, images: int) -> Row:
    """Deal, start the server and all clients, and wait for them."""
    program = network()
    with tempfile.TemporaryDirectory() as folder:
        pools = Path(folder)
        write_pools(pools, program.outline(), calibrate(program), images, lambda *_: None, clients)
        with ExitStack() as stack:
            server = _start(stack, "serve", pools / "server")
            address = _line(server)
            names = ["client"] if clients == 1 else [f"client-{number + 1}" for number in range(clients)]
            asking = [_start(stack, "ask", pools / name, address, str(images)) for name in names]
            for process in asking:
                _line(process)
            started = time.perf_counter()
            for process in asking:
                print(file=process.stdin, flush=True)
            times = [seconds for process in asking for seconds in json.loads(_line(process))]
            took = time.perf_counter() - started
            status = Path(f"/proc/{server.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    megabytes = int(peak[1]) / 1e3 if peak else float("nan")
    count = clients * images
    return Row(clients, count, took, count / took, statistics.median(times), max(times), megabytes)


def _start(stack: ExitStack, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    # One thread per client: even one core is more than its share here.
    threads = {} if arguments[0] == "serve" else {"OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **threads}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit("a process ended; its output is above")
    return line.strip()


def serve(pool: str) -> None:
    """Run the server process."""
    about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(100))))
    start_logging("warning", as_json=False)
    service = ModelServer(
        engine=find_engine("gateshare"),
        options=POOL,
        networks={"network": Network(network(), about)},
        pools=[Path(pool)],
    )
    with service.listen("127.0.0.1", 0) as server:
        print(server.address, flush=True)
        server.serve_forever()


def ask(pool: str, address: str, images: str) -> None:
    """Run a client process, in one session."""
    with connected(Server(address=address, pool=Path(pool))) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        seconds = [client.ask(torch.randn(1, *SIZE)).cost.seconds for _ in range(int(images))]
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:])
    else:
        main()
