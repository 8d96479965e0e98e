"""Many clients of one server at once, over real sockets."""

import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from websockets.sync.client import connect as knock

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import main
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.main import run
from deepshare.private.engines.gateshare.preprocessing.pool import SPENT, LotPool, write_pools
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots
from deepshare.private.engines.gateshare.transport import channel as channels
from deepshare.private.engines.gateshare.transport.channel import HEADER, MESSAGE, Channel, connect
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote import client
from deepshare.private.remote.client import connected
from deepshare.private.remote.server import ModelServer
from deepshare.private.remote.session import PROTOCOL, SETTINGS, Control
from deepshare.private.remote.tls import make_keys, tls_of
from deepshare.private.runtime.engine import Outcome, Role, Task, find_engine
from deepshare.private.runtime.party import Event, ThreadParty
from tests.private.engines.gateshare.trial import SIZE, shared_resnet

ABOUT = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(10))))
POOL = {"dealer": "pool"}
CLIENTS = 3


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(41)
    return translate(shared_resnet(), SIZE)


@pytest.fixture
def pools(program: Program, tmp_path: Path) -> Path:
    write_pools(tmp_path, program.outline(), calibrate(program), 2, lambda *_: None, CLIENTS)
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    """What the server tells of its clients."""
    return []


@pytest.fixture
def address(program: Program, pools: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with one turn for all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    service = ModelServer(
        engine=find_engine("gateshare"),
        options=POOL,
        program=program,
        about=ABOUT,
        log=said.append,
        pool=pools / "server",
        max_clients=CLIENTS,
    )
    server = service.listen("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.socket.getsockname()[1]}"
    server.shutdown()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(42)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Begun(NamedTuple):
    """What a client and the server have agreed on: where the server's part waits, and for what."""

    control: Control
    addresses: dict[Role, str]
    token: bytes

    def connect(self) -> Channel:
        return connect(self.addresses["server"], "server", None, self.token)


def begin(stack: ExitStack, address: str, program: Program, images: int) -> Begun:
    """Agree with the server as a client does."""
    control = Control(stack.enter_context(knock(f"ws://{address}", **SETTINGS)), "server")
    control.send({"protocol": PROTOCOL})
    control.receive()
    control.send({"images": images, "address": "127.0.0.1:1", "outline": outline.digest(program)})
    said = control.receive()
    return Begun(control, said["start"], bytes.fromhex(said["token"]))


def finish(program: Program, begun: Begun, images: Tensor, pool: Path) -> Outcome:
    task = Task(
        role="client",
        program=program.outline(),
        addresses=begun.addresses,
        images=images,
        count=len(images),
        options=POOL,
        extras={"pool": pool, "token": begun.token},
    )
    return run(task, lambda: None)


def ask_one(address: str, pools: Path) -> Tensor:
    with connected(address, None, pools / "client-1") as client:
        return client.ask(torch.randn(1, *SIZE)).logits


def hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it had not read all
        return True


def near(logits: Tensor | None, program: Program, images: Tensor) -> bool:
    return logits is not None and float((logits - program.evaluate(images)).abs().max()) < 2.0**-3


def test_each_client_has_its_own_lots_and_the_server_has_them_all(program: Program, pools: Path) -> None:
    mine = set(LotPool(pools / "server", "server", program).names())
    theirs = [set(LotPool(pools / f"client-{n + 1}", "client", program).names()) for n in range(CLIENTS)]
    each = 2 + spare_lots(schedule(program, calibrate(program)), 2)
    assert set.union(*theirs) == mine and [len(names) for names in theirs] == [each] * CLIENTS
    assert len(mine) == each * CLIENTS


def test_clients_at_once_each_get_their_own_logits(
    stack: ExitStack, address: str, program: Program, pools: Path
) -> None:
    """All are connected before the first is answered; nobody waits for another one's end."""
    begun = [begin(stack, address, program, 2) for _ in range(CLIENTS)]
    images = [torch.randn(2, *SIZE) for _ in begun]
    found: dict[int, Outcome] = {}

    def one(number: int) -> None:
        found[number] = finish(program, begun[number], images[number], pools / f"client-{number + 1}")

    threads = [threading.Thread(target=one, args=(number,)) for number in reversed(range(CLIENTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(near(found[number].logits, program, images[number]) for number in range(CLIENTS))
    assert len((pools / "server" / SPENT).read_text().split()) == 2 * CLIENTS


def test_a_client_that_stalls_or_vanishes_holds_up_nobody(
    stack: ExitStack, address: str, program: Program, pools: Path
) -> None:
    silent = begin(stack, address, program, 1).connect()
    silent.receive_message()  # the server waits for its answer now
    gone = begin(stack, address, program, 1)
    lost = gone.connect()
    lost.receive_message()
    lost.close()
    gone.control._connection.close()
    images = torch.randn(2, *SIZE)
    started = time.monotonic()
    with connected(address, None, pools / "client-1") as client:
        assert near(client.ask(images).logits, program, images)
    assert time.monotonic() - started < 200


def test_no_more_clients_than_there_are_places(stack: ExitStack, address: str, program: Program, pools: Path) -> None:
    held = [begin(stack, address, program, 1).control for _ in range(CLIENTS)]
    with pytest.raises(EngineError, match="3 clients are being answered already: ask again later"):
        ask_one(address, pools)
    held[0]._connection.close()
    deadline = time.monotonic() + 120
    while True:
        try:
            ask_one(address, pools)
            break
        except EngineError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_client_cannot_ask_more_than_was_dealt_for_it(address: str, program: Program, pools: Path) -> None:
    with connected(address, None, pools / "client-2") as client:
        client.ask(torch.randn(2, *SIZE))
    with (
        connected(address, None, pools / "client-2") as client,
        pytest.raises(EngineError, match="1 images, and the pool is good for 0 more"),
    ):
        client.ask(torch.randn(1, *SIZE))


def test_a_damaged_frame_ends_its_own_session_alone(
    stack: ExitStack, address: str, program: Program, pools: Path
) -> None:
    begun = begin(stack, address, program, 1)
    spoiled = begun.connect()
    spoiled.receive_message()
    spoiled._socket.sendall(bytes(100))
    with pytest.raises(EngineError, match="server refused: frame 0 from the client"):
        begun.control.receive()
    assert ask_one(address, pools).shape == (1, 10)


class Spoiling(Channel):
    """Sends its first frame of payload, what goes ahead, in a wrong way."""

    how = ""

    def _send(self, step: int, views: list[memoryview]) -> None:
        if step == MESSAGE or not self.how:
            super()._send(step, views)
            return
        how, self.how = self.how, ""
        payload = b"".join(views)
        header = [self.session, self._outward, step, len(payload)]
        if how == "corrupted":
            header[0] = bytes(16)
        elif how == "oversized":
            header[3] = 1 << 40
        elif how == "out of order":
            header[2] = step + 1
        elif how == "truncated":
            payload = payload[: len(payload) // 2]
        self._socket.sendall((HEADER.pack(*header) + payload) * (2 if how == "repeated" else 1))
        if how == "truncated":
            self._socket.shutdown(socket.SHUT_WR)
        self._outward += 1


class Here:
    """The client's part, in a thread."""

    address, token = "", b""

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        return run(task, ready)

    def cut(self) -> None:
        """It ends with the server."""

    def close(self) -> None:
        """It listens nowhere."""


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("corrupted", "frame {} from the client belongs to another session"),
        ("truncated", "the connection to the client was lost at frame {} from it, step 0 "),
        ("repeated", "frame {} from the client says that it is number "),
        ("oversized", "frame {} from the client for step 0 .*has 1099511627776 bytes"),
        ("out of order", "frame {} from the client is step 1 .*, not step 0 "),
    ],
)
def test_a_bad_frame_ends_its_inference_with_its_name_on_both_sides_and_no_other(
    stack: ExitStack, address: str, program: Program, pools: Path, said: list[str], how: str, named: str
) -> None:
    def spoiled(*arguments: Any) -> Channel:
        channel = Spoiling(connect(*arguments)._socket, "server")
        channel.how = how
        return channel

    other, images = begin(stack, address, program, 1), torch.randn(1, *SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "connect", spoiled)
        patch.setattr(client, "ProcessParty", lambda _, task: ThreadParty(Here(), task))
        with pytest.raises(EngineError) as caught:
            ask_one(address, pools)
    assert near(finish(program, other, images, pools / "client-2").logits, program, images)
    deadline = time.monotonic() + 120
    while not said and time.monotonic() < deadline:  # the server says it after the client has heard it
        time.sleep(0.05)
    assert re.search(named.format(r"\d+"), said[0]), said
    assert re.search("the server refused: " + named.format(r"\d+"), str(caught.value)), caught.value


def wrong_control(begun: Begun, *_: Any) -> None:
    begun.control._connection.send("[" * 200_000)


def wrong_message(begun: Begun, *_: Any) -> None:
    channel = begun.connect()
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel._send(MESSAGE, [memoryview(b"[" * 200_000)])


def wrong_rows(begun: Begun, *_: Any) -> None:
    channel = begun.connect()
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel.send_message({"offsets": False})
    channel.send_message({"take": [("00" * 16, [math.inf])]})


def wrong_account(begun: Begun, program: Program, pools: Path, offline: object = 5) -> None:
    finish(program, begun, torch.randn(1, *SIZE), pools / "client-3")
    begun.control.send({"layers": [], "offline": offline, "session": {}, "seconds": 0.0})


def endless_account(begun: Begun, program: Program, pools: Path) -> None:
    wrong_account(begun, program, pools, {"rounds": math.inf})


@pytest.mark.parametrize(
    ("do", "named"),
    [
        (wrong_control, "the client does not speak the language of deepshare private"),
        (wrong_message, "frame 0 from the client is no message"),
        (wrong_rows, "the client does not say which lots it takes"),
        (wrong_account, "the other party's account of its cost is damaged"),
        (endless_account, "the other party's account of its cost is damaged"),
    ],
)
def test_what_a_client_says_by_hand_ends_its_inference_with_a_reason_for_both(
    stack: ExitStack, address: str, program: Program, pools: Path, said: list[str], do: Callable[..., None], named: str
) -> None:
    begun = begin(stack, address, program, 1)
    do(begun, program, pools)
    with pytest.raises(EngineError, match=f"the server refused: .*{named}"):
        list(iter(begun.control.receive, None))  # maybe its own account first
    assert ask_one(address, pools).shape == (1, 10)
    assert named in said[0]


def test_a_first_word_that_is_none(address: str) -> None:
    with knock(f"ws://{address}", **SETTINGS) as connection:
        connection.send("[" * 200_000)
        assert "does not speak the language" in str(connection.recv(20))


def test_a_frame_that_drips_in_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SILENCE_SECONDS", 0.5)
    left, right = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        for byte in HEADER.pack(bytes(16), 0, 0, 8):
            right.sendall(bytes([byte]))
            if ended.wait(0.1):
                break

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(EngineError, match=r"the client was silent for 0 s at frame 0 from it, .* or too slow"):
        Channel(left, "client").receive(0, 8)
    ended.set()
    thread.join()
    left.close()
    right.close()


@pytest.mark.parametrize("shown", [None, b"", b"GET / HTTP/1.1\r\n\r\n", bytes(16)])
def test_a_stranger_at_the_port_of_a_session_ends_nothing(
    stack: ExitStack, address: str, program: Program, pools: Path, shown: bytes | None
) -> None:
    """One that says nothing, or hangs up, or shows another token; the client comes after it."""
    begun, images = begin(stack, address, program, 1), torch.randn(1, *SIZE)
    host, port = begun.addresses["server"].split(":")
    stranger = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
    if shown is not None:
        stranger.sendall(shown)
        with suppress(OSError):  # it may have been turned away already
            stranger.shutdown(socket.SHUT_WR)
        assert hung_up(stranger)  # before the client is there
    assert near(finish(program, begun, images, pools / "client-1").logits, program, images)
    assert hung_up(stranger)


@pytest.mark.parametrize("tls", [False, True])
def test_a_session_that_is_cut_ends_at_once(program: Program, pools: Path, tls: bool, tmp_path: Path) -> None:
    """Before anybody has come, and while somebody is silent, certificates or not."""
    make_keys(tmp_path / "keys", ["127.0.0.1"])
    hosting = find_engine("gateshare").host(program, pools / "server")
    assert hosting is not None
    for comes in (False, True):
        session, events = hosting.session("127.0.0.1"), Queue[Event]()
        task = Task(
            role="server",
            program=program,
            addresses={},
            count=1,
            tls=tls_of(tmp_path / "keys" / "server") if tls else None,
            options=POOL,
        )
        running = ThreadParty(session, task)
        running.start(events.put)
        host, port = session.address.split(":")
        silent = socket.create_connection((host, int(port))) if comes else None
        time.sleep(0.5)
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started < 30
        assert list(events.queue)[-1][1] in ("refused", "failed")
        if silent is not None:
            silent.close()


def test_over_tls_and_what_a_client_refuses_stays_with_it(program: Program, pools: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"])
    said: list[str] = []
    tls = tls_of(tmp_path / "keys" / "server")
    service = ModelServer(
        engine=find_engine("gateshare"),
        options=POOL,
        program=program,
        about=ABOUT,
        tls=tls,
        log=said.append,
        pool=pools / "server",
    )
    server = service.listen("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.socket.getsockname()[1]}"
    images = torch.randn(1, *SIZE)
    try:
        with connected(address, tls_of(tmp_path / "keys" / "client"), pools / "client-1") as client:
            assert near(client.ask(images).logits, program, images)
        images[0, 0, 0, 0] = 12.34
        with (
            connected(address, tls_of(tmp_path / "keys" / "client"), pools / "client-1") as client,
            pytest.raises(EngineError, match="image 0 holds 12"),
        ):
            client.ask(images)
    finally:
        server.shutdown()
    deadline = time.monotonic() + 120
    while len(said) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "1 image in" in said[0]
    assert said[1].endswith("the client refused: it ended the inference")
