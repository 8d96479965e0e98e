"""Real inferences: three processes, or three threads where what they say is to be seen."""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch import Tensor, nn

from deepshare import private, zoo
from deepshare.errors import EngineError
from deepshare.private.cost import predict
from deepshare.private.engines.gateshare import main, server
from deepshare.private.engines.gateshare.client import ClientParty
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols.local import real_logits
from deepshare.private.engines.gateshare.protocols.schedule import agreed_format, offer, session_id
from deepshare.private.ir import outline
from deepshare.private.ir.program import Linear, Program
from deepshare.private.ir.trace import translate
from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import AnswerError, Outcome
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import MESSAGE, Channel
from deepshare.private.transport.tls import Tls, tls_of
from tests.private.engines.gateshare.damaged_messages import changed
from tests.private.engines.gateshare.sessions import fix_randomness
from tests.private.engines.gateshare.trial import SIZE, shared_resnet, shuffled_norms

ROLES: tuple[Role, ...] = ("server", "client", "dealer")
SLOW = [HealthCheck.too_slow]  # so may a busy machine be
PROGRAM = translate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4))
OFFER = offer(PROGRAM, NumberFormat.usual(PROGRAM)) | {"session": "ab" * 16}


def test_a_shared_network_between_three_processes() -> None:
    torch.manual_seed(21)
    size = (3, 16, 16)
    model = shared_resnet(8, 400, size)
    images = torch.randn(3, *size)
    result = private.infer(model, images, engine="gateshare")
    expected = translate(model, size).evaluate(images)
    assert float((result.logits - expected).abs().median()) <= 2.0**-6
    assert torch.equal(result.logits.argmax(1), expected.argmax(1))
    predicted = predict(model, size, "gateshare", images=3)
    for ours, theirs in zip(predicted.layers, result.cost.layers, strict=True):
        assert replace(theirs.part, seconds=0.0) == ours.part, ours.name
    assert result.cost.online.comparisons == 3 * 400 and result.cost.online.rounds == 17
    assert result.cost.offline.client_bytes == predicted.offline.client_bytes
    assert result.cost.offline.dealer_bytes >= predicted.offline.dealer_bytes
    assert result.cost.session.server_bytes > 8 * sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert result.cost.seconds > 0 and result.cost.error is not None and result.cost.error < 0.1


def test_images_outside_the_range_are_refused_by_the_client() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(EngineError, match=r"image 0 holds 50 .* normalise images"):
        private.infer(model, torch.full((1, *SIZE), 50.0), engine="gateshare")


def together(
    program: Program, images: Tensor, tls: Mapping[Role, Tls] | None = None
) -> dict[Role, Outcome | Exception]:
    """All parties in threads of this process."""
    ports = free_ports("127.0.0.1", 3)
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(ROLES, ports, strict=True)}
    found: dict[Role, Outcome | Exception] = {}

    def run(role: Role) -> None:
        whose = program if role == "server" else program.outline()
        certificates = None if tls is None else tls[role]
        task = Task(
            role=role,
            program=whose,
            addresses=addresses,
            images=images if role == "client" else None,
            count=len(images),
            tls=certificates,
        )
        try:
            found[role] = main.run(task, lambda: None)
        except Exception as error:
            found[role] = error

    threads = [threading.Thread(target=run, args=(role,), name=role) for role in ROLES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def logits_of(found: dict[Role, Outcome | Exception]) -> Tensor:
    outcome = found["client"]
    assert isinstance(outcome, Outcome) and outcome.logits is not None, found
    return outcome.logits


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(22)
    return translate(shuffled_norms(zoo.resnet18(width=2, num_classes=4)), SIZE)


def test_over_tls(program: Program, tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"])
    keys = {role: tls_of(tmp_path / ("client" if role == "client" else "server")) for role in ROLES}
    images = torch.randn(2, *SIZE)
    logits = logits_of(together(program, images, keys))
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-3


def test_many_images_go_in_turns(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "inferences", lambda program, images, **_: [2] * (images // 2) + [1] * (images % 2))
    images = torch.randn(5, *SIZE)
    found = together(program, images)
    logits = logits_of(found)
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-3
    assert isinstance(found["server"], Outcome)
    assert sum(part.rounds for part in found["server"].layers.values()) == 3 * 17


def test_images_of_a_lot_that_are_unsafe_are_replaced(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess, asked = ClientParty.preprocess, []

    def unlucky(client: ClientParty, lot: Any, seed: bytes) -> Any:
        asked.append(lot.images)
        unsafe = {0: [0, 2], 1: [0, 1]}.get(len(asked) - 1, [])
        return replace(preprocess(client, lot, seed), unsafe=torch.tensor([row in unsafe for row in range(lot.images)]))

    monkeypatch.setattr(ClientParty, "preprocess", unlucky)
    images = torch.randn(4, *SIZE)
    logits = logits_of(together(program, images))
    assert asked == [4, 2, 2]
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-3


def test_the_next_lot_is_ordered_before_this_one_is_used(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    said, send, preprocess = list[str](), Channel._send, ClientParty.preprocess

    def noted(channel: Channel, step: int, views: list[memoryview]) -> None:
        if threading.current_thread().name == "client" and channel.session != bytes(16):
            message = json.loads(views[0].tobytes()) if step == MESSAGE else {"step": step} if step == 0 else {}
            said.extend(f"{channel.peer} {key} {message[key]}" for key in ("deal", "step", "end") if key in message)
        send(channel, step, views)

    def unlucky(client: ClientParty, lot: Any, seed: bytes) -> Any:
        unsafe = [lot.images == 2 and len(said) == 2, *[False] * (lot.images - 1)]  # an image of the first lot
        return replace(preprocess(client, lot, seed), unsafe=torch.tensor(unsafe))

    monkeypatch.setattr(Channel, "_send", noted)
    monkeypatch.setattr(ClientParty, "preprocess", unlucky)
    monkeypatch.setattr(main, "inferences", lambda program, images, **_: [2] * (images // 2) + [1] * (images % 2))
    images = torch.randn(5, *SIZE)
    logits = logits_of(together(program, images))
    assert float((logits - program.evaluate(images)).abs().max()) < 2.0**-3
    inference = ["server step 0", "server step 0", "server end True"]  # what is opened beforehand, then the images
    first = ["dealer deal 2", "server deal 2", "server deal 1", "dealer deal 1", "dealer deal 2", *inference]
    then = ["server deal 2", "dealer deal 1", *inference]
    assert said == [*first, *then, "server deal 1", *inference, "dealer end True"]


def test_the_dealer_hears_the_same_whatever_the_model_and_the_images(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    read: list[int] = []
    receive_message, receive = Channel.receive_message, Channel.receive

    def listening(channel: Channel) -> dict[str, Any]:
        message = receive_message(channel)
        if threading.current_thread().name == "dealer":
            heard.append((channel.peer, message))
        return message

    def receiving(channel: Channel, step: int, size: int) -> Any:
        if threading.current_thread().name == "dealer":
            read.append(size)
        return receive(channel, step, size)

    monkeypatch.setattr(Channel, "receive_message", listening)
    monkeypatch.setattr(Channel, "receive", receiving)
    # The number format is public; let it be the same.
    monkeypatch.setattr(server, "calibrate", lambda program, **_: NumberFormat.usual(program))
    fix_randomness(monkeypatch, "heard")  # with which no lot has to be replaced
    torch.manual_seed(23)
    other = translate(shuffled_norms(zoo.resnet18(width=2, num_classes=4)), SIZE)
    everything = []
    for whose, images in (
        (program, torch.zeros(2, *SIZE)),
        (other, torch.randn(2, *SIZE)),
        (program, torch.ones(2, *SIZE)),
    ):
        heard.clear()
        logits_of(together(whose, images))
        everything.append(sorted(map(str, heard)))
    assert everything[0] == everything[1] == everything[2] and len(everything[0]) == 5
    assert not read


def test_logits_beyond_the_range_are_an_error(program: Program) -> None:
    last = program.operations[-1]
    assert isinstance(last, Linear)
    large = Program((*program.operations[:-1], replace(last, bias=last.bias + 1100)))
    found = together(large, torch.randn(1, *SIZE))
    client = found["client"]
    assert isinstance(found["server"], Outcome) and isinstance(client, Outcome)  # the server sees nothing of it
    assert client.wrong.startswith("a logit is beyond 1024") and client.logits is None
    with pytest.raises(EngineError, match="a logit is beyond 1024"):
        real_logits(torch.tensor([1 << 41]), 30)
    assert real_logits(torch.tensor([1 << 40]), 30).item() == 1024


def test_images_out_of_range_are_an_error_that_the_server_does_not_learn(program: Program) -> None:
    """The range is in the server's own words, so it could choose one that tells it about the images."""
    images = torch.randn(1, *SIZE)
    images[0, 0, 0, 0] = 12.34
    found = together(program, images)
    client = found["client"]
    assert isinstance(found["server"], Outcome) and isinstance(client, Outcome)
    assert client.wrong.startswith("image 0 holds 12.34") and client.logits is None
    with pytest.raises(AnswerError, match=r"image 0 holds 12\.34"):
        client.answer()


def test_a_party_with_another_plan_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = outline.digest

    def other(program: Program) -> str:
        return "another" if threading.current_thread().name == "server" else digest(program)

    monkeypatch.setattr(outline, "digest", other)
    found = together(program, torch.randn(1, *SIZE))
    assert "another network or plan" in str(found["dealer"])
    assert all(isinstance(outcome, Exception) for outcome in found.values())


def test_a_party_of_an_earlier_version_is_refused() -> None:
    earlier = {name: value for name, value in OFFER.items() if name != "protocol"}
    for message in (earlier, OFFER | {"protocol": 1}):
        with pytest.raises(EngineError, match="another version of the protocol: install the same deepshare"):
            agreed_format(message, PROGRAM)


def test_a_frame_that_is_changed_on_the_way_ends_the_inference_on_both_sides(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Channel._send

    def meddling(channel: Channel, step: int, views: list[memoryview]) -> None:
        online = threading.current_thread().name == "client" and step > 2 and channel.peer == "server"
        send(channel, step + 1 if online and channel._outward > 8 else step, views)

    monkeypatch.setattr(Channel, "_send", meddling)
    found = together(program, torch.randn(1, *SIZE))
    assert "from the client is step" in str(found["server"])
    assert "connection to the server was lost at frame" in str(found["client"])


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(changed(OFFER))
@example(OFFER | {"numbers": OFFER["numbers"] | {"limit": 10**400}})
def test_an_offer_is_sound_or_refused(message: dict[str, Any]) -> None:
    try:
        numbers, session = agreed_format(message, PROGRAM), session_id(message)
    except EngineError:
        assert message != OFFER
        return
    assert len(session) == 16 and len(numbers.ranges) == len(PROGRAM.operations)
    schedule(PROGRAM, numbers)
