"""Attacks over loopback by holders of a certificate, by those without, and by servers; genuine clients go on."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from deepshare.errors import DeepShareError, EngineError
from deepshare.private.engines.gateshare.preprocessing.pool import LOTS, LotPool
from deepshare.private.engines.gateshare.server import MOST_ROUNDS
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.remote.client import Server, connected, read_offer
from deepshare.private.remote.session import PROTOCOL
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.channel import HEADER, MESSAGE, Channel, PeerBusyError, PeerError, reach
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.engines.gateshare.damaged_messages import changed
from tests.private.remote.attacked import SIZE, deal, genuine, keys, network
from tests.private.remote.running import Running, about, greet, server, wish

ROOT = Path(__file__).parents[3]
CLIENT_CONTEXT = Tls.client_context


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pools and keys of two clients, and keys of a foreign authority."""
    found = tmp_path_factory.mktemp("attacks")
    deal(found, images=40)
    make_keys(found / "foreign", ["localhost"])
    return found


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture
def running(program: Program, folder: Path) -> Iterator[Running]:
    service = Running(program, folder / "keys", pools=[folder / "server"], max_clients=4, max_each=2)
    yield service
    service.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_message_is_refused_by_its_header_and_never_echoed(running: Running, folder: Path) -> None:
    channel = reach(running.address, "server", keys(folder))
    channel.connection.sendall(HEADER.pack(bytes(16), 0, MESSAGE, 66 << 20))
    with pytest.raises(PeerError, match="has 69206016 bytes, not 65536"):
        channel.receive_message()
    for hello in ({"protocol": "s3cret" * 9000}, {"protocol": PROTOCOL, "network": "s3cret" * 9000}):
        channel = reach(running.address, "server", keys(folder))
        channel.send_message(hello)
        with pytest.raises(PeerError) as caught:
            channel.receive_message()
        assert "s3cret" not in str(caught.value) and len(str(caught.value)) < 300
    assert not any("s3cret" in line or len(line) > 400 for line in running.said)


def test_whoever_has_no_fresh_lot_gets_no_place(running: Running, program: Program, folder: Path) -> None:
    """However often it asks; random ids are not lots."""
    for _ in range(20):
        channel = greet(running.address, keys(folder))
        channel.send_message(wish(program, folder / "client-1") | {"lots": [os.urandom(16).hex() for _ in range(50)]})
        with pytest.raises(PeerError, match="spent or unknown"):
            channel.receive_message()
        assert running.listening.sessions == 0


def test_one_certificate_cannot_hold_all_places(
    running: Running, program: Program, folder: Path, stack: ExitStack
) -> None:
    for _ in range(2):
        channel = greet(running.address, keys(folder))
        stack.callback(channel.close)
        channel.send_message(wish(program, folder / "client-1"))
        channel.receive_message()
    third = greet(running.address, keys(folder))
    third.send_message(wish(program, folder / "client-1"))
    with pytest.raises(PeerError, match="2 clients with this certificate are answered already: ask again later"):
        third.receive_message()
    assert genuine(running.address, folder, program) < 20


SLOWLY = 0.0


def take_nothing(channel: Channel) -> None:
    """Take a lot that does not exist."""
    time.sleep(SLOWLY)
    channel.send_message({"take": [(os.urandom(16).hex(), [0])]})
    channel.receive_message()


def test_rounds_are_bounded(running: Running, program: Program, folder: Path) -> None:
    channel = greet(running.address, keys(folder))
    channel.send_message(wish(program, folder / "client-1"))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    channel.send_message({"offsets": False})
    for _ in range(MOST_ROUNDS):
        take_nothing(channel)
    with pytest.raises(PeerError, match=f"no fresh lots after {MOST_ROUNDS} attempts"):
        take_nothing(channel)
    assert genuine(running.address, folder, program) < 20


def test_a_session_has_only_so_much_patience(
    running: Running, program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that answers now and then, each time soon enough, ends all the same."""
    monkeypatch.setattr("deepshare.private.engines.gateshare.host.SILENCE_SECONDS", 1.0)
    channel = greet(running.address, keys(folder))
    channel.send_message(wish(program, folder / "client-1"))
    channel.session = bytes.fromhex(channel.receive_message()["session"])
    started = time.monotonic()
    channel.send_message({"offsets": False})
    monkeypatch.setattr(sys.modules[__name__], "SLOWLY", 0.3)

    def go_on() -> None:
        for _ in range(MOST_ROUNDS - 1):
            take_nothing(channel)

    with pytest.raises((PeerError, ConnectionError, EngineError)):
        go_on()
    assert time.monotonic() - started < MOST_ROUNDS * 0.3
    running.wait_for("the client was silent")
    assert b'reason="failed"' not in running.listening.metrics()  # no fault of the server


def test_a_failure_of_the_server_tells_no_path(running: Running, program: Program, folder: Path) -> None:
    for path in (folder / "server" / LOTS).iterdir():
        os.truncate(path, 100)
    try:
        with (
            pytest.raises(PeerError, match="its part failed, and its log says why") as caught,
            connected(server(running.address, folder / "client-1", keys(folder))) as client,
        ):
            client.ask(torch.randn(1, *SIZE))
    finally:
        deal_again(folder)
    assert str(folder) not in str(caught.value)
    assert "is damaged" in running.wait_for("is damaged")


def deal_again(folder: Path) -> None:
    """Nothing of the old pools is of use."""
    for name in ("server", "client-1", "client-2", "keys"):
        shutil.rmtree(folder / name)
    deal(folder, images=40)


STRANGERS = ("foreign", "none")


@pytest.fixture
def certificates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tls]:
    """Of a client that trusts our authority: of another authority, or none at all."""

    def choose(whose: str) -> Tls:
        trusted = keys(folder)
        monkeypatch.setattr(Tls, "client_context", without_certificate if whose == "none" else CLIENT_CONTEXT)
        own = trusted if whose == "none" else tls_of(folder / whose / "client")
        return Tls(trusted.authority, own.certificate, own.key)

    return choose


def without_certificate(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.authority)
    return context


@pytest.mark.parametrize("whose", STRANGERS)
def test_a_client_without_a_certificate_of_the_authority_cannot_ask(
    running: Running, folder: Path, certificates: Callable[[str], Tls], whose: str
) -> None:
    for _ in range(20):  # what the client sees of it is a matter of time
        with (
            pytest.raises(EngineError, match="the server does not trust your certificate: take one of the authority"),
            connected(server(running.address, folder / "client-1", certificates(whose))),
        ):
            pass


def test_a_certificate_must_name_the_host(running: Running, folder: Path) -> None:
    port = running.address.split(":")[1]
    tls = tls_of(folder / "foreign" / "client")
    with pytest.raises(EngineError, match="no trust in its certificate"):
        connected(server(f"localhost:{port}", folder / "client-1", tls)).__enter__()


def offer_of(program: Program, *dealings: str) -> dict[str, object]:
    return {
        "protocol": PROTOCOL,
        "engine": "gateshare",
        "options": {"dealer": "pool"},
        "outline": outline.dump(program),
        "about": about(program).model_dump(mode="json"),
        "dealings": list(dealings),
    }


HOSTILE = [
    {"version": 2, "operations": []},
    {"version": 2, "operations": [{"kind": "Input", "name": "x", "inputs": [], "shape": [6e9]}]},
    {"version": 2, "operations": [{"kind": "Input", "name": "x", "inputs": [], "shape": [1 << 40, 1 << 40, 2]}]},
    {"version": 2, "operations": [{"kind": "Input", "name": 5, "inputs": "no", "shape": {"a": 1}}]},
    {"version": 2, "operations": ["Input"] * 100},
    {"version": 2, "operations": [{"kind": "Input"}] * 100_000},
    {
        "version": 2,
        "operations": [
            {"kind": "Input", "name": "x", "inputs": [], "shape": [3, 8, 8]},
            {
                "kind": "GatedActivation",
                "name": "g",
                "inputs": [0],
                "shape": [3, 8, 8],
                "mask": {"shape": [6_000_000_000], "format": "bool", "data": ""},
                "square": None,
                "linear": None,
                "constant": None,
                "cells": None,
            },
        ],
    },
]


def test_hostile_outlines_are_errors_of_one_line_and_allocate_nothing() -> None:
    code = (
        "import resource, sys, json\n"
        "from deepshare.errors import DeepShareError\n"
        "from deepshare.private.ir import outline\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for text in sys.stdin:\n"
        "    try:\n"
        "        outline.parse(text)\n"
        "        print('parsed')\n"
        "    except DeepShareError as error:\n"
        "        print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    texts = "\n".join(map(json.dumps, HOSTILE))
    done = subprocess.run([sys.executable, "-c", code], input=texts, capture_output=True, text=True, timeout=60)
    *said, kilobytes = done.stdout.splitlines()
    assert len(said) == len(HOSTILE), done.stderr
    assert all("damaged outline" in one and len(one) < 300 for one in said), said
    assert int(kilobytes) < 100_000


def said_of(offer: dict[str, object]) -> str:
    """The error that an offer causes, which is one of ours."""
    try:
        read_offer(offer, Server(address="localhost:1", engine="gateshare"))
    except DeepShareError as error:
        return str(error)
    return ""


def test_an_offer_says_nothing_to_the_terminal() -> None:
    message = offer_of(network())
    about: dict[str, object] = message["about"]  # type: ignore[assignment]
    hostile = message | {"about": about | {"classes": ["\x1b[2J", "\r\n", "a", "b", "c"]}}
    offer = read_offer(hostile, Server(address="localhost:1", engine="gateshare"))
    assert all(name.isprintable() for name in offer.about.classes)
    assert said_of(offer_of(network()) | {"options": {"\x1b[2J\r": "\n"}}).isprintable()


def test_no_offer_makes_it_depend_on_a_picture_what_is_refused(
    running: Running, program: Program, folder: Path
) -> None:
    """A server could ask for numbers so large that bright pictures alone are out of range."""
    message = offer_of(program)
    about: dict[str, object] = message["about"]  # type: ignore[assignment]
    for std, said in ((1e-4, "beyond 4096: nothing was sent"), (1e-300, "beyond 4096"), (float("inf"), "is damaged")):
        assert said in said_of(message | {"about": about | {"std": [std] * 3}})
    assert "is damaged" in said_of(message | {"about": about | {"mean": [float("nan")] * 3}})
    with connected(server(running.address, folder / "client-1", keys(folder))) as client:
        offered = client.offer.about
        dark = offered.model_copy(update={"std": (0.01,) * 3})
        client.offer = replace(client.offer, about=dark)
        sent = client.channel._outward
        with pytest.raises(EngineError, match="normalises pictures to numbers up to 50, and your pool is for"):
            client.ask(torch.zeros(1, *SIZE))
        assert client.channel._outward == sent


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed(offer_of(network())))
def test_a_damaged_offer_is_an_error_of_one_line_or_none(message: dict[str, object]) -> None:
    assert len(said_of(message).splitlines()) <= 1


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed(json.loads(outline.dump(network()))))
def test_a_damaged_outline_is_an_error_of_one_line_or_none(content: dict[str, object]) -> None:
    message = offer_of(network()) | {"outline": json.dumps(content)}
    assert len(said_of(message).splitlines()) <= 1


def test_a_pool_decides_which_network_is_asked(program: Program, folder: Path) -> None:
    """Before anything of the offer is read."""
    asked = Server(address="localhost:1", pool=folder / "client-1", engine="gateshare")
    with closing(LotPool(folder / "client-1", "client", program)) as pool:
        good = offer_of(program, "00", pool.session.hex())
    assert read_offer(good, asked).program.comparisons == program.comparisons
    with pytest.raises(PeerBusyError, match="is not the server that your pool was dealt for"):
        read_offer(offer_of(program, "00"), asked)
    with pytest.raises(EngineError, match="another network, or another --answer, than your pool was dealt"):
        read_offer(offer_of(program) | {"outline": json.dumps(HOSTILE[0])}, asked)
    with pytest.raises(EngineError, match="does not use engine gateshare"):
        read_offer(offer_of(program) | {"engine": "crypten"}, asked)
    with pytest.raises(EngineError, match="without a dealer's pools, and you gave one"):
        read_offer(offer_of(program) | {"options": {}}, asked)
