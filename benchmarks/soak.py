"""Soak test of a gateshare server with its dealer and 16 clients: killed at random points, with hostile clients beside.

    python benchmarks/soak.py                    # ten minutes, 200 kills
    python benchmarks/soak.py --minutes 60 --kills 1200 --json
    python benchmarks/soak.py --tiny             # seconds

Server, dealer, the server's refill and each client are processes; whoever ends is started again, as systemd does. In
the last third of the time nobody kills the server, so that its memory can be watched. A client asks an image now and
then, hangs up now and then, and compares the logits with those of the network in the clear. Hostile ones connect and
say nothing, send noise and mutated requests, name lots of others, and stop in the middle with a place taken.

It fails if an answer is wrong, if a party uses a lot twice, if the server refuses a client and has not answered it 5 s
later, if a client with lots waits 30 s for an answer (all parties share the cores of this machine), if the server's
memory grows, or if the server or the dealer ends by itself. Time in which the server is down does not count.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.lot import Holder, Lot
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LotPool
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.ask import connect
from deepshare.private.remote.client import AbsentError, LostError
from deepshare.private.remote.dealer import DealerService, Dealership
from deepshare.private.remote.guests.journal import start_logging
from deepshare.private.remote.refill import Refill
from deepshare.private.remote.server import ModelServer, Network
from deepshare.private.remote.session import LONGEST_OFFER, PROTOCOL
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel, PeerError, reach
from deepshare.private.transport.tls import tls_of

SIZE, CLASSES = (3, 8, 8), 5
SERVER = "DeepShare server"
HOST = "127.0.0.1"
LEVEL, IMAGES = 8, 1_000_000
NEAR = 2.0**-4
LONGEST_REFUSAL, LONGEST_WAIT = 5.0, 30.0
# Of the server's memory over the last third.
MOST_GROWTH = 0.05
# Imported once, so that a process starts in a tenth of a second.
PRELOAD = [name for name in sys.modules if name.startswith(("torch", "deepshare.", "numpy"))]


def network() -> Program:
    """The same network in every process."""
    torch.manual_seed(51)
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    return translate(nn.Sequential(*layers), SIZE)


def prepare(folder: Path, clients: int) -> None:
    """Write the outline, and keys for the clients, the last one hostile."""
    network_file.write(folder / "network.json", network())
    make_keys(folder / "keys", [HOST], clients)


def run_server(folder: Path, port: int, name: str = "server") -> None:
    """Serve until killed; for a process of its own."""
    _begin(folder, name)
    about = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(CLASSES))))
    service = ModelServer(
        engine=find_engine("gateshare"),
        options={"dealer": "pool"},
        networks={"network": Network(network(), about)},
        tls=tls_of(folder / "keys" / "server"),
        pools=[folder / "pools" / name],
    )
    with service.listen(HOST, port) as listening:
        _note(folder, name, event="up")
        listening.serve_forever()


def run_dealer(folder: Path, port: int, name: str = "dealer") -> None:
    """Deal until killed; for a process of its own."""
    _begin(folder, name)
    dealership = Dealership(folder / name, folder / "network.json", level=LEVEL, images=IMAGES)
    DealerService(dealership, f"{HOST}:{port}", tls_of(folder / "keys" / "server"), SERVER).run()


def run_refill(folder: Path, dealer: int, name: str = "server", pool: str = "server") -> None:
    """Keep a pool full, whether the dealer is there or not; for a process or a thread of its own."""
    party: Holder = "server" if name == "server" else "client"
    while True:
        with suppress(EngineError), closing(_refill(folder, dealer, name, pool, party)) as refill:
            refill.keep_full(0.3)
        time.sleep(0.2)


def _refill(folder: Path, dealer: int, name: str, pool: str, party: Holder) -> Refill:
    return Refill(folder / "pools" / pool, party, f"{HOST}:{dealer}", tls_of(folder / "keys" / name))


def run_client(folder: Path, port: int, dealer: int, name: str) -> None:
    """Ask images one after the other until killed; for a process of its own."""
    _begin(folder, name)
    threading.Thread(target=run_refill, args=(folder, dealer, name, name), daemon=True).start()
    _note(folder, name, event="up")
    program, pool, drawn = network(), folder / "pools" / name, random.Random(os.getpid())
    while not (pool / ABOUT).exists():
        time.sleep(0.1)
    lots, since = LotPool(pool, "client", program), 0.0
    while True:
        while not lots.left():
            if since:
                _note(folder, name, event="empty")
            time.sleep(0.1)
            since = 0.0
        since = since or time.monotonic()
        try:
            with connect(f"{HOST}:{port}", pool=pool, tls=folder / "keys" / name) as remote:
                for _ in range(drawn.randint(1, 20)):
                    images = torch.randn(1, *SIZE)
                    wished = since or time.monotonic()
                    _note(folder, name, event="asked")
                    logits = remote.ask(images).logits
                    wrong = float((logits - program.evaluate(images)).abs().max()) > NEAR
                    _note(folder, name, event="wrong" if wrong else "answer", begun=wished)
                    since = 0.0
                    time.sleep(drawn.uniform(0.1, 1.5))
        except (AbsentError, LostError, ConnectionError) as error:
            _note(folder, name, event="lost", reason=str(error))
            time.sleep(0.2)
        except EngineError as error:
            _note(folder, name, event="error", reason=str(error))


def run_hostile(folder: Path, port: int, dealer: int, name: str) -> None:
    """Do what a server must bear, one thing after the other, until killed; for a process of its own."""
    _begin(folder, name)
    threading.Thread(target=run_refill, args=(folder, dealer, name, name), daemon=True).start()
    drawn, program = random.Random(os.getpid()), network()
    while True:
        with suppress(OSError, EngineError):
            kind = drawn.choice(("idle", "noise", "hello", "request", "others", "place", "middle"))
            _attack(kind, folder, port, name, program, drawn)
            _note(folder, name, event=kind)
        time.sleep(drawn.uniform(0.0, 0.2))


def _attack(kind: str, folder: Path, port: int, name: str, program: Program, drawn: random.Random) -> None:
    if kind in ("idle", "noise"):
        guests = [socket.create_connection((HOST, port), 5) for _ in range(40 if kind == "idle" else 3)]
        for guest in guests:
            with guest, suppress(OSError):
                if kind == "noise":
                    guest.sendall(drawn.randbytes(drawn.randint(1, 3000)))
        return
    with closing(reach(f"{HOST}:{port}", "server", tls_of(folder / "keys" / name))) as channel:
        channel.silence = 5.0
        if kind == "hello":
            channel.connection.sendall(mutated(_frame(0, {"protocol": PROTOCOL}), drawn))
            channel.connection.recv(1 << 16)
            return
        channel.send_message({"protocol": PROTOCOL})
        channel.receive_message(LONGEST_OFFER)
        with closing(LotPool(folder / "pools" / name, "client", program)) as pool:
            names = [drawn.randbytes(16)] * 3 if kind == "others" else pool.names()[:4]
            lots, session = [one.hex() for one in names], pool.session.hex()
        wish = {"images": 1, "outline": outline.digest(program), "session": session, "lots": lots}
        if kind == "request":
            channel.connection.sendall(mutated(_frame(1, wish), drawn))
            channel.connection.recv(1 << 16)
            return
        channel.send_message(wish)
        channel.receive_message()
        channel.session = bytes.fromhex(session)
        channel.send_message({"offsets": True})
        if kind == "place":  # held, and nothing said
            time.sleep(drawn.uniform(0.0, 3.0))
        else:
            channel.connection.sendall(drawn.randbytes(drawn.randint(1, 3000)))
            channel.connection.recv(1 << 16)


def _frame(number: int, message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return HEADER.pack(bytes(16), number, MESSAGE, len(body)) + body


def mutated(data: bytes, drawn: random.Random) -> bytes:
    """Bytes of which some are others, missing, twice there, or extremes."""
    result = bytearray(data)
    for _ in range(drawn.randint(1, 4)):
        at = drawn.randrange(len(result) + 1)
        match drawn.randrange(5):
            case 0 if at < len(result):
                result[at] = drawn.randrange(256)
            case 1:
                del result[at : at + drawn.randint(1, 40)]
            case 2:
                result[at:at] = drawn.randbytes(drawn.randint(1, 40))
            case 3:
                result[at : at + 8] = b"\xff" * 8
            case _:
                result[at:at] = result[at : at + 64]
    return bytes(result)


def _begin(folder: Path, name: str) -> None:
    """Set up a process: one thread, a log of its own, and a record of every lot that it uses and every refusal."""
    torch.set_num_threads(1)
    sys.stderr = (folder / f"{name}.log").open("a", buffering=1)
    start_logging("info", as_json=False)
    used, take = os.open(folder / f"{name}.lots", os.O_WRONLY | os.O_APPEND | os.O_CREAT), LotPool.take_all
    ended = Channel._ended

    def take_all(self: LotPool, names: Sequence[bytes]) -> list[Lot]:
        lots = take(self, names)
        os.write(used, "".join(f"{one.hex()}\n" for one in names).encode())
        return lots

    def refused(self: Channel, kind: int, words: bytes) -> PeerError:
        if self.peer == "server":
            _note(folder, name, event="refused", reason=words.decode(errors="replace"))
        return ended(self, kind, words)

    LotPool.take_all = take_all  # type: ignore[method-assign]
    Channel._ended = refused  # type: ignore[method-assign]


def _note(folder: Path, name: str, **what: Any) -> None:
    with (folder / f"{name}.events").open("a") as file:
        file.write(json.dumps({"at": time.monotonic(), **what}) + "\n")


def _events(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.events"
    # Whoever was killed may have left half a line.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


Jobs = dict[str, tuple[Any, tuple[Any, ...]]]
"""What a process runs, by its name: a function of a module, and arguments."""


class Supervisor:
    """Starts processes, and starts whoever ended again."""

    def __init__(self, jobs: Jobs) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._jobs = jobs
        self.processes: dict[str, BaseProcess] = {}
        self.killed: list[tuple[str, float]] = []
        self.ended: list[str] = []

    def start(self, name: str) -> None:
        """Start one."""
        run, arguments = self._jobs[name]
        process = self._context.Process(target=run, args=arguments, name=name, daemon=True)
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> None:
        """kill -9, and start it again."""
        self.processes[name].kill()
        self.killed.append((name, time.monotonic()))
        self.processes[name].join()
        self.start(name)

    def look(self) -> None:
        """Start again whoever ended by itself."""
        for name, process in self.processes.items():
            if not process.is_alive():
                self.ended.append(f"{name} (exit code {process.exitcode})")
                self.start(name)

    def stop(self) -> None:
        """Kill all."""
        for process in self.processes.values():
            process.kill()
            process.join()


@dataclass(frozen=True)
class Soak:
    """What a soak found."""

    seconds: float
    clients: int
    kills: dict[str, int]
    ended: list[str]
    answers: int
    wrong: int
    unanswered: list[str]
    lots: int
    lots_twice: int
    lost: int
    errors: dict[str, int]
    refused: dict[str, int]
    longest_refusal: float
    hostile: dict[str, int]
    median_wait: float
    longest_wait: float
    server_megabytes: tuple[float, float]

    @property
    def faults(self) -> list[str]:
        """What must not be; empty if all is well."""
        first, last = self.server_megabytes
        found = {
            f"{self.wrong} answers are wrong": self.wrong > 0,
            f"never answered: {', '.join(self.unanswered)}": bool(self.unanswered),
            f"{self.lots_twice} lots were used twice": self.lots_twice > 0,
            f"a client was refused for {self.longest_refusal:.1f} s": self.longest_refusal > LONGEST_REFUSAL,
            f"a client waited {self.longest_wait:.1f} s": self.longest_wait > LONGEST_WAIT,
            f"the server's memory grew from {first:.0f} to {last:.0f} MB": last > first * (1 + MOST_GROWTH),
            f"ended by themselves: {', '.join(self.ended)}": bool(self.ended),
        }
        return [fault for fault, there in found.items() if there]


def soak(seconds: float, clients: int, kills: int, hostile: int, keep: Path | None = None) -> Soak:
    """Run one, in a folder that is kept, or deleted afterwards."""
    with tempfile.TemporaryDirectory() as where:
        folder, drawn = keep or Path(where), random.Random(0)
        names = [f"client-{number + 1}" for number in range(clients)]
        enemies = [f"client-{clients + number + 1}" for number in range(hostile)]
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, clients + hostile)
        port, dealer = free_ports(HOST, 2)
        jobs: Jobs = {
            "dealer": (run_dealer, (folder, dealer)),
            "refill": (run_refill, (folder, dealer)),
            "server": (run_server, (folder, port)),
            **{name: (run_client, (folder, port, dealer, name)) for name in names},
            **{name: (run_hostile, (folder, port, dealer, name)) for name in enemies},
        }
        staff = Supervisor(jobs)
        try:
            _start_all(staff, jobs, folder)
            while not any(event["event"] == "answer" for name in names for event in _events(folder, name)):
                time.sleep(0.1)
            began = time.monotonic()
            memory = list(_run(staff, names, seconds, kills, drawn))
            ended = time.monotonic()
        finally:
            staff.stop()
        return _found(folder, staff, names, enemies, (began, ended), memory)


def _start_all(staff: Supervisor, jobs: Jobs, folder: Path) -> None:
    for name in jobs:
        if name == "server":  # it does not start without a pool
            while not (folder / "pools" / "server" / ABOUT).exists():
                time.sleep(0.1)
        staff.start(name)


def _run(staff: Supervisor, clients: list[str], seconds: float, kills: int, drawn: random.Random) -> Iterator[float]:
    """Kill at random points; yields the server's memory in megabytes while nobody kills it any more."""
    began, calm = time.monotonic(), time.monotonic() + seconds * 2 / 3
    due = sorted(began + drawn.uniform(0, seconds) for _ in range(kills))
    turns = itertools.cycle(("server", "client", "dealer", "refill"))
    while time.monotonic() < began + seconds:
        time.sleep(0.1)
        staff.look()
        if due and due[0] < time.monotonic():
            victim = next(turns)
            if victim == "client" or (victim == "server" and due[0] > calm):
                victim = drawn.choice(clients)
            staff.kill(victim)
            due.pop(0)
        if time.monotonic() > calm:
            status = Path(f"/proc/{staff.processes['server'].pid}/statm").read_text()
            yield int(status.split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _found(
    folder: Path,
    staff: Supervisor,
    names: list[str],
    enemies: list[str],
    span: tuple[float, float],
    memory: list[float],
) -> Soak:
    began, ended = span
    ups = sorted(event["at"] for event in _events(folder, "server"))
    downs = [(at, next((up for up in ups if up > at), float("inf"))) for who, at in staff.killed if who == "server"]
    events = [event for name in names for event in _events(folder, name)]
    answers = [event for event in events if event["event"] in ("answer", "wrong")]

    def waited(begun: float, ended: float) -> float:
        return ended - begun - sum(max(0.0, min(ended, up) - max(begun, at)) for at, up in downs)

    waits = [waited(one["begun"], one["at"]) for one in answers]
    deaths = {name: [at for who, at in staff.killed if who == name] for name in names}
    refusals = [waited(*span) for name in names for span in _refusals(_events(folder, name), deaths[name], ended)]
    waits += [waited(*span) for name in names for span in _unanswered(_events(folder, name), deaths[name], ended)]
    used = [(folder / f"{name}.lots").read_text().split() for name in ("server", *names)]
    twice = sum(count - 1 for lots in used for count in Counter(lots).values())
    silent = [name for name in names if not any(event["event"] == "answer" for event in _events(folder, name))]
    part = max(1, len(memory) // 5)
    return Soak(
        seconds=ended - began,
        clients=len(names),
        kills=dict(Counter(name.partition("-")[0] for name, _ in staff.killed)),
        ended=staff.ended,
        answers=len(answers),
        wrong=sum(one["event"] == "wrong" for one in answers),
        unanswered=silent,
        lots=len(used[0]),
        lots_twice=twice,
        lost=sum(one["event"] == "lost" for one in events),
        errors=dict(Counter(one["reason"] for one in events if one["event"] == "error")),
        refused=dict(Counter(one["reason"] for one in events if one["event"] == "refused")),
        longest_refusal=max(refusals, default=0.0),
        hostile=dict(Counter(event["event"] for name in enemies for event in _events(folder, name))),
        median_wait=statistics.median(waits) if waits else float("nan"),
        longest_wait=max(waits, default=float("nan")),
        server_megabytes=(statistics.median(memory[:part]), statistics.median(memory[-part:])),
    )


def _refusals(events: list[dict[str, Any]], deaths: list[float], ended: float) -> Iterator[tuple[float, float]]:
    """When a client was refused first, and answered next; or killed, or the soak at its end, if it was not."""
    since = None
    for event in [*events, {"event": "end", "at": ended}]:
        if event["event"] == "refused":
            since = since or event["at"]
        elif since is not None and event["event"] in ("answer", "up", "end"):
            yield since, min([event["at"], *(at for at in deaths if at > since)])
            since = None


def _unanswered(events: list[dict[str, Any]], deaths: list[float], ended: float) -> Iterator[tuple[float, float]]:
    """When a client with lots asked first, and was killed, or the soak at its end, without an answer."""
    since = None
    for event in [*events, {"event": "end", "at": ended}]:
        if event["event"] == "asked":
            since = since or event["at"]
        elif since is not None and event["event"] in ("answer", "wrong", "empty", "up", "end"):
            if event["event"] in ("up", "end"):
                yield since, min([event["at"], *(at for at in deaths if at > since)])
            since = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="three clients, ten seconds, five kills")
    parser.add_argument("--keep", type=Path, help="new folder for logs, pools and records, which is kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        found = soak(10, 3, 5, 1, options.keep)
    else:
        found = soak(60 * options.minutes, options.clients, options.kills, 2, options.keep)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        for name, value in asdict(found).items():
            print(f"{name.replace('_', ' '):>18}  {value}")
    if found.faults:
        raise SystemExit("; ".join(found.faults))


if __name__ == "__main__":
    main()
