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
from websockets.sync.client import connect

from deepshare import plan, share, zoo
from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.remote.server import LARGEST_BATCH, ModelServer
from deepshare.private.remote.session import PING_SECONDS, PONG_SECONDS
from deepshare.private.remote.tls import make_keys, tls_of
from deepshare.private.runtime.engine import find_engine
from tests.private.remote.running import ABOUT, SIZE, Running, wait_for_workers, workers

pytestmark = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = zoo.resnet18(width=4, num_classes=10)
    return translate(share(model, plan(model, SIZE, "10%"), start="uniform"), SIZE)


@pytest.fixture
def running(program: Program) -> Iterator[Running]:
    service = Running(program)
    yield service
    service.server.shutdown()


def test_a_client_gets_the_classes_and_both_costs(program: Program, tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"])
    running = Running(program, tmp_path)
    images = torch.randn(2, *SIZE)
    by_name = running.address.replace("127.0.0.1", "localhost")
    with connected(by_name, tls_of(tmp_path / "client")) as client:
        assert client.offer.about == ABOUT
        assert all(getattr(op, name).is_meta for op in client.offer.program.operations for name in op.hidden)
        result = client.ask(images)
    torch.testing.assert_close(result.logits.double(), program.evaluate(images), rtol=0, atol=1e-2)
    assert result.cost.online.comparisons == 2 * program.comparisons
    assert result.cost.online.server_bytes > 0 and result.cost.online.client_bytes > 0
    running.wait_for("2 images in")
    with pytest.raises(EngineError, match="does not answer as a server"), connected(running.address):
        pass
    make_keys(tmp_path / "others", ["localhost"])
    with (
        pytest.raises(EngineError, match="no trust in its certificate"),
        connected(by_name, tls_of(tmp_path / "others/client")),
    ):
        pass
    running.server.shutdown()
    assert workers() == []


ASK = """
import sys, torch
from deepshare.private.remote.client import connected
from deepshare.private.remote.session import PING_SECONDS, PONG_SECONDS
with connected(sys.argv[1]) as client:
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
    with connected(running.address) as other:
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
            with connected(running.address) as client:
                client.ask(torch.randn(64, *SIZE))
        except EngineError as error:
            reasons.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    first = wait_for_workers(2)[0]
    os.kill(first, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert "failed: its process ended" in reasons[0]
    said = running.wait_for(": the ")
    # Why a client's part ended is its own affair.
    assert "the server failed: its process ended" in said or said.endswith("the client refused: it ended the inference")
    wait_for_workers(0, 10)


def test_what_does_not_fit_is_refused_with_a_reason(running: Running) -> None:
    with (
        connected(running.address) as client,
        pytest.raises(EngineError, match=r"give floats of shape \(N, 3, 16, 16\)"),
    ):
        client.ask(torch.randn(1, 3, 8, 8))
    with (
        connected(running.address, pool=Path("pools/client-1")) as client,
        pytest.raises(EngineError, match="computes with crypten without a dealer's pools, and you gave one"),
    ):
        client.ask(torch.randn(1, *SIZE))
    with connected(running.address) as client, pytest.raises(EngineError, match="server refused: 257 images at once"):
        client.ask(torch.zeros(LARGEST_BATCH + 1, *SIZE))
    with connect(f"ws://{running.address}") as raw:
        raw.send('{"protocol": 99}')
        assert "speaks protocol 2, the client 99" in str(raw.recv(10))
    with connect(f"ws://{running.address}") as raw:
        raw.send("not JSON")
        assert "does not speak the language" in str(raw.recv(10))
    with connect(f"ws://{running.address}") as raw:
        raw.send('{"protocol": 2}')
        raw.recv(10)
        raw.send('{"images": 1, "address": "127.0.0.1:1", "outline": "another"}')
        assert "another plan" in str(raw.recv(10))
    assert workers() == []


def test_a_taken_port_and_an_absent_server_are_named(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = ModelServer(engine=find_engine("crypten"), options={}, program=program, about=ABOUT, log=print)
        with pytest.raises(EngineError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*--port"):
            service.listen("127.0.0.1", port)
    with pytest.raises(EngineError, match=rf"no server at 127\.0\.0\.1:{port}"), connected(f"127.0.0.1:{port}"):
        pass
    with pytest.raises(EngineError, match="IPv6"):
        ModelServer(engine=find_engine("crypten"), options={}, program=program, about=ABOUT, log=print).listen("::1", 0)
    with pytest.raises(EngineError, match="needs a third party"):
        ModelServer(
            engine=find_engine("crypten"), options={"provider": "ttp"}, program=program, about=ABOUT, log=print
        ).listen("127.0.0.1", 0)
