"""Many clients of one server at once, over real sockets, all on its one port."""

import asyncio
import math
import os
import re
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import server as gateshare_server
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.marks import FILE
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool, write_pools
from deepshare.private.engines.gateshare.preprocessing.spare_lots import spare_lots
from deepshare.private.engines.gateshare.protocols import local
from deepshare.private.engines.gateshare.protocols.step import ProtocolStep
from deepshare.private.engines.gateshare.server import ServerSession
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote import client as clients
from deepshare.private.remote.ask import connect
from deepshare.private.remote.client import ModelClient, connected
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport import channel as channels
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel, PeerError, reach
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.engines.gateshare.trial import SIZE, shared_resnet
from tests.private.remote.running import Running, greet, server, wish

CLIENTS = 3


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(41)
    return translate(shared_resnet(), SIZE)


@pytest.fixture(scope="module")
def dealt(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pools")
    write_pools(folder, program.outline(), calibrate(program), 2, lambda *_: None, CLIENTS)
    return folder


@pytest.fixture
def pools(dealt: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dealt, tmp_path / "pools"))


@pytest.fixture
def running(program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server with one turn for all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    service = Running(program, pools=[pools / "server"], max_clients=CLIENTS)
    yield service
    service.stop()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(42)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client_of(stack: ExitStack, running: Running, pools: Path, number: int) -> ModelClient:
    return stack.enter_context(connected(server(running.address, pools / f"client-{number}")))


def ask_one(running: Running, pools: Path, number: int = 1) -> Tensor:
    with connected(server(running.address, pools / f"client-{number}")) as client:
        return client.ask(torch.randn(1, *SIZE)).logits


def used(pool: Path) -> int:
    with sqlite3.connect(pool / FILE) as base:
        return int(base.execute("SELECT count(*) FROM lots WHERE state = 1").fetchone()[0])


def near(logits: Tensor | None, program: Program, images: Tensor) -> bool:
    return logits is not None and float((logits - program.evaluate(images)).abs().max()) < 2.0**-3


def test_each_client_has_its_own_lots_and_the_server_has_them_all(program: Program, pools: Path) -> None:
    mine = set(LotPool(pools / "server", "server", program).names())
    theirs = [set(LotPool(pools / f"client-{n + 1}", "client", program).names()) for n in range(CLIENTS)]
    each = 2 + spare_lots(schedule(program, calibrate(program)), 2)
    assert set.union(*theirs) == mine and [len(names) for names in theirs] == [each] * CLIENTS
    assert len(mine) == each * CLIENTS


def test_clients_at_once_each_get_their_own_logits_on_one_port(
    stack: ExitStack, running: Running, program: Program, pools: Path
) -> None:
    """All are prepared before the first is answered; nobody waits for another one's end."""
    asking = [client_of(stack, running, pools, number + 1) for number in range(CLIENTS)]
    for client in asking:
        client.prepare(2)
    assert running.listening.sessions == CLIENTS
    images = [torch.randn(2, *SIZE) for _ in asking]
    found: dict[int, Tensor] = {}

    def one(number: int) -> None:
        found[number] = asking[number].ask(images[number]).logits

    threads = [threading.Thread(target=one, args=(number,)) for number in reversed(range(CLIENTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(near(found[number], program, images[number]) for number in range(CLIENTS))
    assert used(pools / "server") == 2 * CLIENTS
    assert {client._channel.connection.getpeername()[1] for client in asking} == {int(running.address.split(":")[1])}


def test_a_client_that_waits_with_its_images_has_no_thread(
    stack: ExitStack, running: Running, program: Program, pools: Path
) -> None:
    client = client_of(stack, running, pools, 1)
    client.prepare(1)
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("session") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    images = torch.randn(1, *SIZE)
    assert near(client.ask(images).logits, program, images)


def test_one_connection_asks_again_without_the_weights(
    stack: ExitStack, running: Running, program: Program, pools: Path
) -> None:
    client, images = client_of(stack, running, pools, 1), torch.randn(1, *SIZE)
    first, second = client.ask(images), client.ask(images)
    assert near(first.logits, program, images) and near(second.logits, program, images)
    assert first.cost.session.server_bytes > 0 == second.cost.session.server_bytes
    assert first.cost.online.comparisons == second.cost.online.comparisons == program.comparisons
    assert first.cost.online.client_bytes == second.cost.online.client_bytes


def test_a_client_that_stalls_or_vanishes_holds_up_nobody(
    stack: ExitStack, running: Running, program: Program, pools: Path
) -> None:
    silent = greet(running.address)
    silent.send_message(wish(program, pools / "client-2"))
    silent.receive_message()  # the server waits for its answer now
    lost = greet(running.address)
    lost.send_message(wish(program, pools / "client-3"))
    lost.receive_message()
    lost.close()
    images = torch.randn(2, *SIZE)
    assert near(client_of(stack, running, pools, 1).ask(images).logits, program, images)
    silent.close()


def test_no_more_clients_than_there_are_places(
    stack: ExitStack, running: Running, program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    for _ in range(CLIENTS):
        held.append(greet(running.address))
        held[-1].send_message(wish(program, pools / "client-1"))
        held[-1].receive_message()
    with pytest.raises(EngineError, match="3 clients are being answered already: ask again later"):
        ask_one(running, pools)
    held[0].close()
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", 60.0)
    images = torch.randn(1, *SIZE)
    logits = clients.ask_when_free(server(running.address, pools / "client-1"), lambda one: one.ask(images)).logits
    assert near(logits, program, images)


def test_a_place_that_waits_for_images_goes_to_whoever_needs_it(
    stack: ExitStack, running: Running, program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepshare.private.remote.guests.places.SPARED_SECONDS", 0.2)
    waiting = [client_of(stack, running, pools, number) for number in (1, 2, 2)]
    for client in waiting:
        client.prepare(1)
    time.sleep(0.5)
    assert ask_one(running, pools, 3).shape == (1, 10)
    with pytest.raises(PeerError, match="others are waiting for your place"):
        waiting[0].ask(torch.randn(1, *SIZE))
    assert waiting[1].ask(torch.randn(1, *SIZE)).logits.shape == (1, 10)


def test_a_client_cannot_ask_more_than_was_dealt_for_it(running: Running, program: Program, pools: Path) -> None:
    """Neither one that counts, nor one that takes its spare lots for images."""
    with connected(server(running.address, pools / "client-2")) as client:
        client.ask(torch.randn(2, *SIZE))
        with pytest.raises(EngineError, match="1 images, and the pool is good for 0 more"):
            client.ask(torch.randn(1, *SIZE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LotPool, "check", lambda *_: None)
        with pytest.raises(EngineError, match="all 2 images that were dealt for this client have been asked"):
            ask_one(running, pools, 2)
    assert ask_one(running, pools, 3).shape == (1, 10)


def test_a_restored_client_finds_fresh_lots_and_loses_none(
    running: Running, program: Program, pools: Path, tmp_path: Path
) -> None:
    shutil.copytree(pools / "client-1", tmp_path / "copy")
    ask_one(running, pools)
    shutil.rmtree(pools / "client-1")
    shutil.copytree(tmp_path / "copy", pools / "client-1")
    ask_one(running, pools)
    assert used(pools / "server") == 2
    (stock,) = LotPool(pools / "client-1", "client", program).stock()
    assert (stock.used + stock.unusable, stock.doubted) == (1 + stock.unusable, 1)


def test_a_server_that_calls_all_lots_spent_uses_none_up(
    running: Running, program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may refuse to work; afterwards the pool is as good as before."""
    monkeypatch.setattr(LotPool, "is_fresh", lambda *_: False)
    with pytest.raises(EngineError, match="spent or unknown"):
        ask_one(running, pools)
    monkeypatch.undo()
    assert LotPool(pools / "client-1", "client", program).left() == 2

    def burn(self: ServerSession, _: int) -> None:
        while True:
            taken = self._client.receive_message()["take"]
            self._client.send_message({"spent": [name for name, _ in taken]})

    before = LotPool(pools / "client-1", "client", program).names()
    monkeypatch.setattr(ServerSession, "_agree", burn)
    with pytest.raises(EngineError, match="calls lots spent that it called fresh"):
        ask_one(running, pools)
    assert len(LotPool(pools / "client-1", "client", program).names()) >= len(before) - 2


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
    stack: ExitStack, running: Running, program: Program, pools: Path, how: str, named: str
) -> None:
    def spoiled(address: str, peer: str, tls: Tls | None) -> Channel:
        channel = Spoiling(reach(address, peer, tls)._socket, "server")
        channel.how = how
        return channel

    other, images = client_of(stack, running, pools, 2), torch.randn(1, *SIZE)
    other.prepare(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "reach", spoiled)
        with pytest.raises(EngineError) as caught:
            ask_one(running, pools)
    assert near(other.ask(images).logits, program, images)
    assert re.search(named.format(r"\d+"), running.wait_for("frame")), running.said
    assert re.search("the server refused: " + named.format(r"\d+"), str(caught.value)), caught.value


def wrong_first(channel: Channel, *_: object) -> None:
    channel._send(MESSAGE, [memoryview(b"[" * 60_000)])


def wrong_message(channel: Channel, program: Program, pool: Path) -> None:
    channel.send_message(wish(program, pool))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel._send(MESSAGE, [memoryview(b"[" * 60_000)])


def wrong_rows(channel: Channel, program: Program, pool: Path) -> None:
    channel.send_message(wish(program, pool))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel.send_message({"offsets": False})
    channel.send_message({"take": [("00" * 16, [math.inf])]})


def wrong_lots(channel: Channel, program: Program, pool: Path) -> None:
    channel.send_message(wish(program, pool) | {"lots": ["secret words"]})


def two_owners(channel: Channel, program: Program, pool: Path) -> None:
    lots = [*wish(program, pool)["lots"], *wish(program, pool.parent / "client-2")["lots"]]
    channel.send_message(wish(program, pool) | {"lots": lots})


def other_dealing(channel: Channel, program: Program, pool: Path) -> None:
    channel.send_message(wish(program, pool) | {"session": "00" * 16})


@pytest.mark.parametrize(
    ("do", "named"),
    [
        (wrong_first, "frame 1 from the client is no message"),
        (wrong_message, "frame 2 from the client is no message"),
        (wrong_rows, "the client does not say which lots it takes"),
        (wrong_lots, "the client does not say which lots it has"),
        (two_owners, "lots of several clients"),
        (other_dealing, "no pool of the client's dealing"),
    ],
)
def test_what_a_client_says_by_hand_ends_its_inference_with_a_reason_for_both(
    running: Running, program: Program, pools: Path, do: Callable[..., None], named: str
) -> None:
    channel = greet(running.address)
    do(channel, program, pools / "client-1")
    with pytest.raises(EngineError, match=f"the server refused: .*{named}"):
        list(iter(channel.receive_message, None))
    assert ask_one(running, pools).shape == (1, 10)
    assert named in running.wait_for(named)
    assert not any("secret" in line for line in running.said)


def test_a_first_word_that_is_none(running: Running) -> None:
    channel = reach(running.address, "server", None)
    channel._send(MESSAGE, [memoryview(b"[" * 60_000)])
    with pytest.raises(PeerError, match="frame 0 from the client is no message"):
        channel.receive_message()


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


def test_over_tls_and_what_a_client_refuses_stays_with_it(program: Program, pools: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"])
    running = Running(program, tmp_path / "keys", pools=[pools / "server"])
    tls, images = tls_of(tmp_path / "keys" / "client"), torch.randn(1, *SIZE)
    try:
        with connected(server(running.address, pools / "client-1", tls)) as client:
            assert near(client.ask(images).logits, program, images)
            images[0, 0, 0, 0] = 12.34
            with pytest.raises(EngineError, match="image 0 holds 12"):
                client.ask(images)
            sent = client._channel._outward
            with pytest.raises(EngineError, match="image 0 holds 12"):
                client.ask(images)
            assert client._channel._outward == sent  # nothing was said at all
    finally:
        running.stop()
    assert [line for line in running.said if "1 image in" in line] and len(running.said) <= 2


def send_absurd_logits(last: ProtocolStep, share: Tensor, *rest: Any) -> Tensor:
    return local.send_logits(last, share + 2**45, *rest)


def test_the_client_says_the_same_whatever_its_logits_are(
    stack: ExitStack, running: Running, program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that deviates adds so much to one logit that the client must refuse it; it sees no difference."""
    client, images = client_of(stack, running, pools, 1), torch.randn(1, *SIZE)
    heard: list[object] = []
    receive = Channel.receive_message

    def watched(self: Channel, longest: int | None = None) -> dict[str, object]:
        message = receive(self, longest)
        if self.peer == "client":
            heard.append(message)
        return message

    monkeypatch.setattr(Channel, "receive_message", watched)
    client.ask(images)
    honest = heard[-1]
    monkeypatch.setattr(gateshare_server, "send_logits", send_absurd_logits)
    with pytest.raises(EngineError, match="a logit is beyond"):
        client.ask(images)
    assert heard[-1] == honest == {"end": True}
    deadline = time.monotonic() + 20
    while sum("1 image in" in line for line in running.said) < 2:
        assert time.monotonic() < deadline, running.said
        time.sleep(0.02)
    assert not any("beyond" in line for line in running.said)


@pytest.mark.parametrize("wrong", ["logits", "images"])
def test_a_connection_goes_on_as_always_whatever_is_wrong(
    wrong: str, running: Running, program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its logits, where further images and the next lot follow; or with its images, where nothing does."""
    write_pools(pools / "more", program.outline(), calibrate(program), 8, lambda *_: None)
    (pools / "more/server").rename(pools / "server-2")
    running.stop()
    running = Running(program, pools=[pools / "server", pools / "server-2"])
    images = torch.randn(2, *SIZE)
    with connect(running.address, pool=pools / "more/client") as remote:
        remote.left()
        client = remote._client
        assert client is not None and client.prepared == 1
        before = client._channel._outward
        if wrong == "logits":
            monkeypatch.setattr(gateshare_server, "send_logits", send_absurd_logits)
        else:
            images[1, 0, 0, 0] = 12.34
        with pytest.raises(EngineError, match="a logit is beyond" if wrong == "logits" else "image 1 holds 12"):
            remote.ask(images)
        remote.left()
        assert remote._client is client and client.prepared == 1
        assert (client._channel._outward == before) == (wrong == "images")
        assert used(pools / "server-2") == (3 if wrong == "logits" else 1)
        monkeypatch.undo()
        images = torch.randn(1, *SIZE)
        assert near(remote.ask(images).logits, program, images)
    running.stop()


def test_a_connection_prepares_ahead_and_survives_a_restart(
    program: Program, pools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", 60.0)
    write_pools(pools / "more", program.outline(), calibrate(program), 12, lambda *_: None)
    running = Running(program, pools=[pools / "more" / "server"])
    images = torch.randn(3, *SIZE)
    with connect(running.address, pool=pools / "more" / "client") as remote:
        first = remote.ask(images[:1])
        assert near(first.logits, program, images[:1])
        remote._settle()
        assert remote._client is not None and remote._client.prepared == 1
        waited = remote.ask(images)  # one is prepared, two are not
        assert near(waited.logits, program, images) and waited.cost.images == 3
        assert waited.cost.online.comparisons == 3 * program.comparisons
        expected = [str(index) for index in waited.logits.argmax(1).tolist()]
        assert remote.classify(images) == asyncio.run(remote.aclassify(images)) == expected
        port = running.address.split(":")[1]
        running.stop()
        again: list[Running] = []

        def restart() -> None:
            again.append(Running(program, pools=[pools / "more" / "server"], port=int(port)))

        later = threading.Timer(1.0, restart)
        later.start()  # nobody listens meanwhile
        assert near(remote.ask(images[:1]).logits, program, images[:1])
    later.join()
    again[0].stop()
    # Every image once, and what was prepared and never used: at the end, and when the server ended.
    assert 1 + 3 + 3 + 3 + 1 <= used(pools / "more" / "server") <= 12
