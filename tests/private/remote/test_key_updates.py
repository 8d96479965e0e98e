"""Records of TLS without content, as many as one likes: neither the server nor a session goes on reading them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing import network_file
from deepshare.private.engines.gateshare.preprocessing.pool import write_pools
from deepshare.private.ir.program import Program
from deepshare.private.remote import refill
from deepshare.private.remote.client import connected
from deepshare.private.remote.dealer import DealerService, Dealership
from deepshare.private.remote.session import PROTOCOL
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.channel import PeerBusyError
from deepshare.private.transport.tls import tls_of
from tests.private.remote.attacked import SIZE, network
from tests.private.remote.key_updates import Updates
from tests.private.remote.running import Running, greet, server, wish

UPDATES = 200_000
"""Two seconds of reading, and more on a machine that is slow or busy."""
SOON = 1.5


@pytest.fixture(scope="module")
def program() -> Program:
    return network()


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> Path:
    write_pools(tmp_path, program.outline(), calibrate(program), 4, lambda *_: None, 2)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 2)
    return tmp_path


@pytest.fixture
def running(program: Program, folder: Path) -> Iterator[Running]:
    service = Running(program, folder / "keys", pools=[folder / "server"])
    yield service
    service.stop()


def updates(address: str, folder: Path) -> Updates:
    try:
        return Updates(address, folder / "keys/client-1")
    except (OSError, AttributeError) as error:
        pytest.skip(f"no libssl to make records with ({error})")


def flooded(guest: Updates, meanwhile: Callable[[], object]) -> float:
    """Send updates; returns how long something else takes meanwhile."""
    data = guest.make(UPDATES)

    def send() -> None:
        with suppress(OSError):
            guest.socket.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(0.2)
    started = time.monotonic()
    meanwhile()
    return time.monotonic() - started


def test_a_flood_at_the_door_holds_up_nobody(running: Running, folder: Path) -> None:
    def ask() -> None:
        own = server(running.address, folder / "client-2", tls_of(folder / "keys/client-2"))
        with connected(own) as client:
            assert client.ask(torch.randn(1, *SIZE)).logits.shape == (1, 5)

    with closing(updates(running.address, folder)) as guest:
        guest.say({"protocol": PROTOCOL})
        assert guest.hear()["protocol"] == PROTOCOL
        assert flooded(guest, ask) < SOON
    assert "(DeepShare client-1)" in running.wait_for("it kept the server reading records of TLS without content")
    with pytest.raises(PeerBusyError, match="a connection with this certificate kept the server busy with nothing"):
        greet(running.address, tls_of(folder / "keys/client-1"))
    ask()


def test_a_flood_in_a_session_ends_it(running: Running, folder: Path, program: Program) -> None:
    with closing(updates(running.address, folder)) as guest:
        guest.say({"protocol": PROTOCOL})
        guest.hear()
        guest.say(wish(program, folder / "client-1"))
        guest.join(guest.hear()["session"])
        flooded(guest, lambda: running.wait_for("it kept the server reading records of TLS", 3))
        running.wait_for("it left before it sent images", 3)
    deadline = time.monotonic() + 5
    while running.listening.sessions or running.listening._door.connections:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_dealer_goes_on(folder: Path, program: Program) -> None:
    network_file.write(folder / "network.json", program, None, None)
    dealership = Dealership(folder / "dealer", folder / "network.json", level=2, images=4)
    service = DealerService(dealership, "127.0.0.1:0", tls_of(folder / "keys/dealer"), "DeepShare server")
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()

    def hello() -> None:
        with closing(Updates(service.address, folder / "keys/client-2")) as other:
            other.say({"protocol": refill.PROTOCOL, "role": "client"})
            assert "outline" in other.hear()

    with closing(updates(service.address, folder)) as guest:
        guest.say({"protocol": refill.PROTOCOL, "role": "client"})
        guest.hear()
        assert flooded(guest, hello) < SOON
    service.stop()
    thread.join(10)
