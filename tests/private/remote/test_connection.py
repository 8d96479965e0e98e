"""A connection that prepares the next image while it waits: between image and class goes what is online alone."""

from pathlib import Path

import pytest
import torch

from deepshare.private.cost import predict
from deepshare.private.remote.connection import connect
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
