"""What the page shows of the server's view is what the server received."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.protocols.local import InputStep
from deepshare.private.engines.gateshare.protocols.step import ServerOnline
from deepshare.private.remote.ask import connect
from deepshare.private.ui.views import PartyViews, png
from tests.private.remote.attacked import SIZE, deal
from tests.private.remote.running import Running

heard: list[Tensor] = []
genuine = InputStep.server_online


def listening(step: InputStep, inputs: list[Tensor], at: ServerOnline) -> Tensor:
    heard.append(genuine(step, inputs, at))
    return heard[-1]


def test_the_share_is_the_servers_and_is_other_noise_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InputStep, "server_online", listening)
    running = Running(deal(tmp_path, clients=1), pools=[tmp_path / "server"])
    image = torch.zeros(1, *SIZE)
    seen = []
    with connect(running.address, pool=tmp_path / "client") as remote:
        for _ in range(2):
            views = PartyViews()
            result = remote.ask(image, watch=views)
            account = views.account(remote.about, image, result)
            assert views.share == heard[-1].numpy().tobytes()
            upper = (heard[-1].numpy().view(np.uint64)[0] >> np.uint64(56)).astype(np.uint8)
            assert account["share"] == png(upper)
            assert account["picture"] == png(np.full(SIZE, 128, np.uint8))  # the mean, 0.5
            best = account["classes"][0]
            assert best["name"] == remote.about.classes[int(result.logits.argmax())]
            assert best["probability"] == float(result.logits.double().softmax(1).max())
            ranked = replace(result, answer=torch.tensor([[2, 0]]), hides_scores=True)
            assert views.account(remote.about, image, ranked)["classes"] == [
                {"name": name, "probability": None} for name in ("2", "0")
            ]
            seen.append(views)
    running.stop()
    assert seen[0].share != seen[1].share
    assert [(frame.sent, frame.layer, frame.size) for frame in seen[0].frames] == [
        (frame.sent, frame.layer, frame.size) for frame in seen[1].frames
    ]
