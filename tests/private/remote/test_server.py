"""A server and clients over real sockets, their parties in real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from deepshare import plan, share, zoo
from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.remote.server import LARGEST_BATCH, ModelServer, Network
from deepshare.private.remote.session import PING_SECONDS, PONG_SECONDS
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import find_engine
from deepshare.private.transport.channel import reach
from deepshare.private.transport.tls import tls_of
from tests.private.remote.running import SIZE, Running, about, greet, server, wait_for_workers, workers

pytestmark = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = zoo.resnet18(width=4, num_classes=10)
    return translate(share(model, plan(model, SIZE, "10%"), start="uniform"), SIZE)


@pytest.fixture
def running(program: Program) -> Iterator[Running]:
    service = Running(program, engine="crypten")
    yield service
    service.stop()


def test_a_client_gets_the_classes_and_both_costs(program: Program, tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"])
    running = Running(program, tmp_path, engine="crypten")
    images = torch.randn(2, *SIZE)
    by_name = running.address.replace("127.0.0.1", "localhost")
    with connected(server(by_name, None, tls_of(tmp_path / "client"), "crypten")) as client:
        assert client.offer.about == about(program)
        assert all(getattr(op, name).is_meta for op in client.offer.program.operations for name in op.hidden)
        result = client.ask(images)
    torch.testing.assert_close(result.logits.double(), program.evaluate(images), rtol=0, atol=1e-2)
    assert result.cost.online.comparisons == 2 * program.comparisons
    assert result.cost.online.server_bytes > 0 and result.cost.online.client_bytes > 0
    running.wait_for("2 images in")
    with (
        pytest.raises(EngineError, match="does not answer as a server"),
        connected(server(running.address, engine="crypten")),
    ):
        pass
    make_keys(tmp_path / "others", ["localhost"])
    with (
        pytest.raises(EngineError, match="no trust in its certificate"),
        connected(server(by_name, None, tls_of(tmp_path / "others/client"), "crypten")),
    ):
        pass
    running.stop()
    assert workers() == []


ASK = """
import sys, torch
from deepshare.private.remote.client import Server, connected
with connected(Server(address=sys.argv[1], engine="crypten")) as client:
    client.ask(torch.randn(64, 3, 16, 16))
"""


def test_a_client_that_is_killed_ends_its_inference_and_no_other(running: Running) -> None:
    client = subprocess.Popen([sys.executable, "-c", ASK, running.address], start_new_session=True)
    wait_for_workers(1)
    time.sleep(1)
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    running.wait_for("the connection to the client was lost", 30)
    wait_for_workers(0, 10)
    with connected(server(running.address, engine="crypten")) as other:
        assert other.ask(torch.randn(1, *SIZE)).logits.shape == (1, 10)


@pytest.mark.slow
def test_a_client_that_vanishes_without_a_word_is_missed(running: Running) -> None:
    client = subprocess.Popen([sys.executable, "-c", ASK, running.address], start_new_session=True)
    wait_for_workers(1)
    os.kill(client.pid, signal.SIGSTOP)  # its machine is still there, but nobody answers
    try:
        running.wait_for("the connection to the client was lost", 10 + PING_SECONDS + PONG_SECONDS)
        wait_for_workers(0, 10)
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.wait()


def test_a_party_that_dies_is_an_error_for_the_other_with_its_reason(running: Running) -> None:
    reasons: list[str] = []

    def ask() -> None:
        try:
            with connected(server(running.address, engine="crypten")) as client:
                client.ask(torch.randn(64, *SIZE))
        except EngineError as error:
            reasons.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    first = wait_for_workers(2)[0]
    os.kill(first, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    # Why a party ended is in its own log: a client's reason tells of its images, a server's may hold paths.
    assert "failed: its process ended" in reasons[0] or "the server failed: its log says why" in reasons[0]
    said = running.wait_for(": the ")
    assert "the server failed: its process ended" in said or said.endswith(": the client refused")
    wait_for_workers(0, 10)


def test_what_does_not_fit_is_refused_with_a_reason(running: Running) -> None:
    others = workers()
    with (
        connected(server(running.address, engine="crypten")) as client,
        pytest.raises(EngineError, match=r"give floats of shape \(N, 3, 16, 16\)"),
    ):
        client.ask(torch.randn(1, 3, 8, 8))
    with (
        pytest.raises(EngineError, match="does not use engine gateshare: nothing was sent"),
        connected(server(running.address, Path("pools/client-1"))),
    ):
        pass
    with (
        connected(server(running.address, engine="crypten")) as client,
        pytest.raises(EngineError, match="server refused: too many images at once"),
    ):
        client.ask(torch.zeros(LARGEST_BATCH + 1, *SIZE))
    raw = reach(running.address, "server", None)
    raw.send_message({"protocol": 99})
    with pytest.raises(EngineError, match="speaks protocol 3: install deepshare"):
        raw.receive_message()
    raw = greet(running.address)
    raw.send_message({"images": 1, "address": "127.0.0.1:1", "outline": "another"})
    with pytest.raises(EngineError, match="another plan"):
        raw.receive_message()
    wait_for_workers(len(others))


def test_a_taken_port_and_an_absent_server_are_named(program: Program) -> None:
    def service(**options: str) -> ModelServer:
        networks = {"network": Network(program, about(program))}
        return ModelServer(engine=find_engine("crypten"), options=options, networks=networks)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*--port"):
            service().listen("127.0.0.1", port)
    with (
        pytest.raises(EngineError, match=rf"no server at 127\.0\.0\.1:{port}"),
        connected(server(f"127.0.0.1:{port}", engine="crypten")),
    ):
        pass
    with pytest.raises(EngineError, match="IPv6"):
        service().listen("::1", 0)
    with pytest.raises(EngineError, match="99999 is no port: give one from 1 to 65535"):
        service().listen("127.0.0.1", 99999)
    with pytest.raises(EngineError, match="needs a third party"):
        service(provider="ttp").listen("127.0.0.1", 0)
