"""A connection that prepares the next image while it waits: between image and class goes what is online alone."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from deepshare.private.cost import predict
from deepshare.private.remote.ask import connect
from tests.private.remote.attacked import SIZE, deal
from tests.private.remote.running import Running


@pytest.mark.parametrize("ahead", [True, False])
def test_an_image_costs_what_is_online(ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = deal(tmp_path, images=6, clients=1)
    running = Running(program, pools=[tmp_path / "server"])
    cost = predict(program, SIZE, "gateshare")
    with connect(running.address, pool=tmp_path / "client", ahead=ahead) as remote:
        for _ in range(3):
            remote.left()  # waits until the next image is prepared
            client = remote._client
            assert client is not None and client.prepared == ahead
            sent = client._channel.sent
            with monkeypatch.context() as patched:
                patched.setattr(remote, "_prepare", lambda: None)  # nothing else is sent once the class is there
                result = remote.ask(torch.zeros(1, *SIZE))
            before = 0 if ahead else cost.offline.client_bytes
            assert client._channel.sent - sent == cost.online.client_bytes + before
            assert result.cost.offline.client_bytes == cost.offline.client_bytes > 0
            remote._prepare()
    running.stop()


def test_hanging_up_while_an_image_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = deal(tmp_path, images=40, clients=1)
    running = Running(program, pools=[tmp_path / "server"])
    done_before: list[bool] = []
    for attempt in range(10):
        remote = connect(running.address, pool=tmp_path / "client")
        preparing, client = remote._preparing, remote._client
        assert preparing is not None and client is not None
        close = client.close

        def noted(preparing: Future[None] = preparing, close: Callable[[], None] = close) -> None:
            done_before.append(preparing.done())
            close()

        monkeypatch.setattr(client, "close", noted)
        time.sleep(attempt * 0.005)
        begun = time.monotonic()
        remote.close()
        assert time.monotonic() - begun < 5
    assert done_before == 10 * [True]  # the other thread reads the pool until then
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("deepshare-prepare")]
    running.stop()
