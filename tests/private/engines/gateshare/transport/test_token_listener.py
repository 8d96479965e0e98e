"""Certificates of both sides are checked, on the WebSocket and on the port of a session, and name the host asked."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest
import torch
from torch import nn

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.engines.gateshare.transport import channel, token_listener
from deepshare.private.engines.gateshare.transport.channel import Channel, connect, listen
from deepshare.private.engines.gateshare.transport.token_listener import TokenListener
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote import session
from deepshare.private.remote.client import connected
from deepshare.private.remote.server import ModelServer
from deepshare.private.remote.tls import make_keys, tls_of
from deepshare.private.runtime.engine import Tls, find_engine

SIZE = (3, 8, 8)
ABOUT = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple("abcde"))
STRANGERS = ("foreign", "none")
CLIENT_CONTEXT = Tls.client_context


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(51)
    return translate(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)), SIZE)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, each of an authority of its own."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "foreign"):
        make_keys(folder / name, ["localhost"])
    return folder


@pytest.fixture
def port(program: Program, keys: Path, tmp_path: Path) -> Iterator[int]:
    write_pools(tmp_path, program.outline(), calibrate(program), 1, lambda *_: None)
    tls = tls_of(keys / "ours" / "server")
    service = ModelServer(
        engine=find_engine("gateshare"),
        options={"dealer": "pool"},
        program=program,
        about=ABOUT,
        tls=tls,
        log=print,
        pool=tmp_path / "server",
    )
    server = service.listen("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.socket.getsockname()[1]
    server.shutdown()


@pytest.fixture
def certificates(keys: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tls]:
    """Of a client that trusts our authority: ours, or of another authority, or none at all."""

    def choose(whose: str) -> Tls:
        trusted = tls_of(keys / "ours" / "client")
        monkeypatch.setattr(Tls, "client_context", without_certificate if whose == "none" else CLIENT_CONTEXT)
        own = trusted if whose == "none" else tls_of(keys / whose / "client")
        return Tls(trusted.authority, own.certificate, own.key)

    return choose


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is let in by mistake waits for nothing."""
    monkeypatch.setattr(channel, "SILENCE_SECONDS", 20.0)


def without_certificate(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.authority)
    return context


def test_a_certificate_that_names_the_host_and_no_address(
    program: Program, port: int, keys: Path, tmp_path: Path
) -> None:
    tls, images = tls_of(keys / "ours" / "client"), torch.randn(1, *SIZE)
    with connected(f"localhost:{port}", tls, tmp_path / "client") as client:
        logits = client.ask(images).logits
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-6
    with (
        pytest.raises(EngineError, match=r"no trust in its certificate .*127\.0\.0\.1"),
        connected(f"127.0.0.1:{port}", tls),
    ):
        pass


@pytest.mark.parametrize("whose", STRANGERS)
def test_a_client_without_a_certificate_of_the_authority_cannot_ask(
    port: int, certificates: Callable[[str], Tls], whose: str
) -> None:
    said = "the server does not trust your certificate: take one of the authority"
    for _ in range(20):  # what the client sees of it is a matter of time
        with pytest.raises(EngineError, match=said), connected(f"localhost:{port}", certificates(whose)):
            pass


@pytest.mark.parametrize("whose", STRANGERS)
def test_nor_can_it_come_to_the_port_of_a_session_with_the_token(
    keys: Path, certificates: Callable[[str], Tls], whose: str
) -> None:
    door, admitted = TokenListener("127.0.0.1"), Queue[socket.socket]()
    address = f"localhost:{door.address.split(':')[1]}"
    wait = threading.Thread(target=lambda: admitted.put(door.admit(tls_of(keys / "ours" / "server"))))
    wait.start()
    with pytest.raises((EngineError, ConnectionError)):
        connect(address, "server", certificates(whose), door.token).receive_message()
    assert admitted.empty()
    client = connect(address, "server", certificates("ours"), door.token)
    wait.join()
    Channel(admitted.get(), "client").send_message({"go": 1})
    assert client.receive_message() == {"go": 1}
    client.close()
    door.close()


@pytest.mark.parametrize("whose", ["ours", *STRANGERS])
def test_nor_to_a_party_that_waits_for_one(keys: Path, certificates: Callable[[str], Tls], whose: str) -> None:
    said: Queue[object] = Queue()
    with listen("127.0.0.1:0") as listener:

        def serve() -> None:
            try:
                said.put(channel.accept(listener, "client", tls_of(keys / "ours" / "server")).receive_message())
            except (EngineError, ConnectionError) as error:
                said.put(error)

        threading.Thread(target=serve).start()
        try:
            client = connect(f"localhost:{listener.getsockname()[1]}", "server", certificates(whose))
            client.send_message({"role": "client"})
        except (EngineError, ConnectionError):
            assert whose != "ours"
        found = said.get(timeout=20)
    assert found == {"role": "client"} if whose == "ours" else "did not connect" in str(found)


def test_both_sides_allow_a_minute_for_a_handshake_and_no_more(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.SETTINGS["open_timeout"] == 60
    monkeypatch.setitem(session.SETTINGS, "open_timeout", 0.5)
    service = ModelServer(engine=find_engine("crypten"), options={}, program=program, about=ABOUT, log=print)
    server = service.listen("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    started = time.monotonic()
    with socket.create_connection(server.socket.getsockname(), timeout=20) as silent:
        assert silent.recv(1) == b""
    server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"no server at {address}"), connected(address):
            pass
    assert 1 <= time.monotonic() - started < 60


def test_of_too_many_silent_guests_the_first_are_sent_away_and_the_client_is_let_in() -> None:
    opened = TokenListener("127.0.0.1")
    host, number = opened.address.split(":")
    admitted: Queue[socket.socket] = Queue()
    threading.Thread(target=lambda: admitted.put(opened.admit(None)), daemon=True).start()
    silent = [socket.create_connection((host, int(number)), timeout=60) for _ in range(token_listener._MOST + 5)]
    assert silent[0].recv(1) == b""
    client = socket.create_connection((host, int(number)), timeout=60)
    client.sendall(opened.token)
    assert admitted.get(timeout=60).getpeername() == client.getsockname()
    for one in (*silent, client):
        one.close()
    opened.close()
