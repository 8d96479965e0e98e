"""Serving and asking from Python: a network in memory, each party a process or a thread of its own."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import torch
from PIL import Image

import deepshare
from deepshare.errors import EngineError, PlanMismatchError
from deepshare.private.remote.serve import _named
from deepshare.private.remote.server import Listening
from tests.private.remote.served import ABOUT, CLASSES, GATES, network


def picture(path: Path, size: int = 16) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_a_network_in_memory_is_served_by_one_process_and_asked_by_another(tmp_path: Path) -> None:
    model = network()
    deepshare.private.outline((model, ABOUT), tmp_path / "network.json", samples=torch.randn(8, 3, 16, 16))
    told: list[tuple[int, int]] = []
    dealt = deepshare.private.deal(
        tmp_path / "network.json", tmp_path / "pools", images=4, on_progress=lambda *lots: told.append(lots)
    )
    assert told[-1] == (4 + dealt.spare, 4 + dealt.spare) and 0 < dealt.distance < 1
    command = [sys.executable, str(Path(__file__).with_name("served.py")), str(tmp_path / "pools" / "server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            photo = picture(tmp_path / "photo.png")
            pool = tmp_path / "pools" / "client"
            result = deepshare.private.ask(photo, address, pool=pool, network="mine")
            with torch.no_grad():
                plain = model(ABOUT.read([photo]))
            assert result.class_names == CLASSES and result.logits.shape == (1, 4)
            assert (result.logits - plain).abs().max() < 0.1
            assert result.cost.online.comparisons == GATES
            with pytest.raises(EngineError, match="pool of engine gateshare, not crypten"):
                deepshare.private.ask(photo, address, pool=pool, engine="crypten")
            other = deepshare.plan(deepshare.zoo.resnet18(width=4), budget=700, input_size=ABOUT.size)
            with pytest.raises(PlanMismatchError, match="nothing was sent"):
                deepshare.private.ask(photo, address, pool=pool, plan=other)
            server.send_signal(signal.SIGTERM)
            assert server.stdout.readline() == "over\n"
        finally:
            server.kill()


def test_a_thread_serves_until_shutdown(tmp_path: Path) -> None:
    model = network()
    opened: Queue[Listening] = Queue()
    thread = threading.Thread(
        target=lambda: deepshare.private.serve((model, ABOUT), engine="crypten", port=0, ready=opened.put), daemon=True
    )
    thread.start()
    server = opened.get(timeout=60)
    images = torch.randn(2, 3, 16, 16)
    seen: list[str] = []
    result = deepshare.private.ask(
        images, server.address, engine="crypten", see=lambda offer: seen.append(offer.engine.name)
    )
    with torch.no_grad():
        assert (result.logits - model(images)).abs().max() < 0.1
    assert seen == ["crypten"]
    with pytest.raises(EngineError, match="does not use engine gateshare"):
        deepshare.private.ask(images, server.address, engine="gateshare")
    server.shutdown()
    thread.join(30)
    assert not thread.is_alive()


NAME = "cifar100-resnet18w16-2288"


def test_networks_are_served_by_the_names_that_they_were_given_by(tmp_path: Path) -> None:
    assert list(_named(NAME)) == [NAME]  # the run folder has another name
    folder = _named(NAME)[NAME]
    assert isinstance(folder, Path) and folder.is_dir()
    assert list(_named([folder, NAME])) == [folder.name, NAME]
    (tmp_path / "a" / "run").mkdir(parents=True)
    (tmp_path / "b" / "run").mkdir(parents=True)
    with pytest.raises(EngineError, match="two runs have the same folder name"):
        _named([tmp_path / "a/run", tmp_path / "b/run"])


def test_refusals_come_before_a_port_is_opened(tmp_path: Path) -> None:
    model = network()
    serve, outline, deal = deepshare.private.serve, deepshare.private.outline, deepshare.private.deal
    three = ABOUT.model_copy(update={"classes": CLASSES[:3]})
    with pytest.raises(EngineError, match="3 names for 4 classes"):
        serve((model, three))
    with pytest.raises(EngineError, match="has one set of weights: leave out best"):
        serve({"mine": (model, ABOUT)}, best=True)
    with pytest.raises(EngineError, match="--pool is for engine gateshare and this is crypten"):
        serve((model, ABOUT), engine="crypten", pool=tmp_path)
    with pytest.raises(EngineError, match="names no training images"):
        outline((model, ABOUT), tmp_path / "network.json", samples=8)
    with pytest.raises(EngineError, match="-1 samples"):
        outline(tmp_path, tmp_path / "network.json", samples=-1)
    with pytest.raises(EngineError, match="0 images for 1 clients"):
        deal(tmp_path / "network.json", tmp_path / "pools", images=0)
    assert not list(tmp_path.iterdir())
