"""Engine gateshare-2pc between two processes, with products under encryption."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import pytest
import torch
from torch import Tensor, nn

from deepshare import load, plan, private, share
from deepshare.private.api import sample_images
from deepshare.private.cost import Result, cost_comparison, predict
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat, calibrate
from deepshare.private.ir.trace import translate
from deepshare.private.remote.client import connected
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.party import Event, ProcessParty, free_ports
from deepshare.private.transport.tls import tls_of
from deepshare.text import byte_size
from deepshare.training.run import networks as by_name
from tests.private.engines.gateshare.trial import SIZE, networks, shared_resnet
from tests.private.remote.running import Running, server

with_spu = pytest.mark.skipif(find_spec("spu") is None, reason="spu is not installed")


def check(model: nn.Module, images: Tensor) -> Result:
    """Run a network, and compare logits and costs."""
    size = tuple(images.shape[1:])
    result = private.infer(model, images, engine="gateshare-2pc")
    expected = translate(model, size).evaluate(images)
    chosen = expected.gather(1, result.logits.argmax(1, keepdim=True))
    assert float((expected.amax(1, keepdim=True) - chosen).max()) <= 2.0**-5  # noise on logits may swap two near ones
    assert float((result.logits - expected).abs().median()) <= 2.0**-6
    predicted = predict(model, size, "gateshare-2pc", images=len(images))
    for ours, theirs in zip(predicted.layers, result.cost.layers, strict=True):
        assert replace(theirs.part, seconds=0.0) == ours.part, ours.name
    offline, computed = result.cost.offline, predicted.offline
    assert offline.dealer_bytes == computed.dealer_bytes == 0
    assert offline.server_bytes == pytest.approx(computed.server_bytes, rel=0.1)
    assert offline.client_bytes == pytest.approx(computed.client_bytes, rel=0.1)
    # The message that begins a session is not counted.
    for field in ("server_bytes", "client_bytes"):
        assert 0 <= getattr(result.cost.session, field) - getattr(predicted.session, field) < 64
    assert f"number of images: {byte_size(predicted.session.bytes)} (net)." in cost_comparison({"net": predicted})
    return result


def test_a_small_network() -> None:
    torch.manual_seed(3)
    size = (2, 6, 6)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    shared = share(model, plan(model, size, budget=36), start="uniform").eval()
    result = check(shared, torch.randn(2, *size))
    assert result.cost.online.comparisons == 2 * 36
    # Hints for encryption are sent with the first images: of three layers, each of which is merged to one polynomial.
    assert result.cost.session.server_bytes < 3 * 4096 * 10 < result.cost.offline.server_bytes
    predicted = predict(shared, size, "gateshare-2pc", images=2)
    assert result.cost.offline.server_bytes == pytest.approx(predicted.offline.server_bytes, rel=0.02)


def test_a_trained_residual_network() -> None:
    folder = by_name.locate(by_name.find("digits-resnet10-192"))
    _, images = sample_images(folder, 2, None)
    result = check(load(folder).eval(), images)
    assert result.cost.online.comparisons == 2 * 192
    # Beside the images and the logits, a round trip for each site, and two more for each of the four leaders.
    assert result.cost.online.rounds == 1 + 8 + 2 * 4


def test_alpha_and_beta_of_fewer_fractional_bits_than_is_usual() -> None:
    """Where a large weight leaves no room for finer numbers."""
    torch.manual_seed(3)
    model = shared_resnet(4)
    with torch.no_grad():
        model.get_parameter("fc.weight")[0, 0] = 100.0
        for name in ("alpha", "beta"):  # of numbers that stay small
            model.get_parameter(f"layer4.1.act2.{name}")[0] = 0.001
    program = translate(model, SIZE)
    assert (calibrate(program).finer, NumberFormat.usual(program).finer) == (0, 2)
    assert predict(program.outline(), SIZE, "gateshare-2pc").session != predict(model, SIZE, "gateshare-2pc").session
    result = private.infer(model, torch.randn(1, *SIZE), engine="gateshare-2pc")
    assert 0 <= result.cost.session.bytes - predict(model, SIZE, "gateshare-2pc").session.bytes < 128


def test_two_machines_over_tls_of_which_the_client_opens_no_port(tmp_path: Path) -> None:
    torch.manual_seed(2)
    size = (3, 8, 8)
    program = translate(shared_resnet(4, "10%", size), size)
    make_keys(tmp_path, ["localhost"])
    running = Running(program, tmp_path, engine="gateshare-2pc")
    address, images = running.address.replace("127.0.0.1", "localhost"), torch.randn(1, *size)
    with connected(server(address, None, tls_of(tmp_path / "client"), "gateshare-2pc")) as client:
        result = client.ask(images)
    running.stop()
    expected = program.evaluate(images)
    assert torch.equal(result.logits.argmax(1), expected.argmax(1))
    assert result.cost.offline.server_bytes > 0 and result.cost.offline.dealer_bytes == 0


@pytest.mark.parametrize(("victim", "seconds"), [("server", 0.2), ("client", 0.8), ("server", 2.0)])
def test_a_party_that_is_killed_ends_the_other_with_one_line(victim: Role, seconds: float) -> None:
    torch.manual_seed(4)
    size = (3, 16, 16)
    program = translate(shared_resnet(8, 400, size), size)
    roles: tuple[Role, Role] = ("server", "client")
    addresses = dict(zip(roles, (f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2)), strict=True))
    events: Queue[Event] = Queue()
    parties: dict[Role, ProcessParty] = {}
    with ExitStack() as stack:
        for role in roles:
            own = (program, None) if role == "server" else (program.outline(), torch.randn(32, *size))
            task = Task(role=role, program=own[0], addresses=addresses, images=own[1], count=32)
            parties[role] = ProcessParty("gateshare-2pc", task, 1)
            parties[role].start(events.put)
            stack.callback(parties[role].stop)
        for _ in roles:
            assert events.get(timeout=100).kind == "ready"
        time.sleep(seconds)
        os.kill(parties[victim]._process.pid, signal.SIGKILL)
        ends = dict(event[:2] for event in (events.get(timeout=60) for _ in roles))
    survivor = roles[1 - roles.index(victim)]
    assert ends[survivor] in ("lost", "refused") and ends[victim] == "failed"


@with_spu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadratic", "excited and shared"])
def test_squares_and_products_of_two_hidden_tensors(name: str) -> None:
    torch.manual_seed(6)
    check(networks()[name], torch.randn(2, *SIZE))
