"""Schedules: truncations in the making, results that are forgotten, and frames before the images."""

import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols import local
from deepshare.private.engines.gateshare.protocols.schedule import (
    ScheduleBuilder,
    begin,
    dump_masked_weights,
    parse_masked_weights,
    receive_client_openings,
    receive_lot,
    receive_masked_weights,
    send_client_openings,
    send_lot,
)
from deepshare.private.engines.gateshare.protocols.step import ProtocolStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.program import Input
from deepshare.private.ir.trace import translate
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.trial import SIZE, Trial, shared_resnet

Ends = tuple[Channel, Channel]


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(translate(shared_resnet(), SIZE))


@pytest.fixture
def ends(trial: Trial) -> Iterator[Ends]:
    """Both ends of a connection in one session."""
    left, right = socket.socketpair()
    with closing(Channel(left, "client")) as server, closing(Channel(right, "server")) as client:
        for channel in (server, client):
            begin(trial.dealer.id, trial.public, channel)
        yield server, client


def sent_by(send: Callable[[], object]) -> threading.Thread:
    """A thread that sends, as frames are larger than what a socket holds."""
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_result_is_truncated_once_for_each_scale(trial: Trial) -> None:
    builder = ScheduleBuilder(trial.program, NumberFormat.usual(trial.program))
    node = trial.program.operations[0]
    assert isinstance(node, Input)
    local.lower_input(builder, 0, node)
    source, scale = builder.result(0), builder.steps[0].scale
    assert builder.truncated(0, source, scale, 10) == source  # nothing to do
    shorter = builder.truncated(0, source, scale - 4, 10)
    assert builder.truncated(0, source, scale - 4, 10) == shorter
    assert builder.truncated(0, source, scale - 5, 10) == shorter + 1
    assert [step.by for step in builder.steps if isinstance(step, TruncationStep)] == [4, 5]


def test_a_pending_operation_gets_its_last_steps_once_when_it_is_read(trial: Trial) -> None:
    builder, finished = ScheduleBuilder(trial.program, NumberFormat.usual(trial.program)), []
    for operation in (3, 5):
        builder.at[operation] = 10 * operation
        builder.pending[operation] = lambda operation=operation: finished.append(operation)  # type: ignore[misc]
    assert [builder.result(3), builder.result(3)] == [30, 30]
    assert finished == [3]
    builder.finish_pending()
    assert finished == [3, 5] and not builder.pending


def test_labels_beyond_those_of_operations_are_never_given_twice(trial: Trial) -> None:
    builder, count = ScheduleBuilder(trial.program, NumberFormat.usual(trial.program)), len(trial.program.operations)
    assert [builder.extra_label() for _ in range(3)] == [count, count + 1, count + 2]


def test_results_are_forgotten_after_their_last_reader(trial: Trial) -> None:
    made: list[weakref.ref[Tensor]] = []
    most = 0

    def do(step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
        nonlocal most
        assert [int(value) for value in inputs] == list(step.inputs)
        most = max(most, sum(one() is not None for one in made))
        result = torch.tensor(step.number)
        made.append(weakref.ref(result))
        return result

    steps = schedule(trial.program, trial.number_format)
    assert int(steps.run(do)) == steps.output
    assert most <= 4 < len(steps.steps)  # both branches of a block, and what is being computed from them
    assert sum(one() is not None for one in made) == 0


def test_a_lot_arrives_as_it_was_dealt(trial: Trial, ends: Ends) -> None:
    server, client = ends
    lot, _ = trial.lots(2)
    sending = sent_by(lambda: send_lot(client, trial.public, lot, "server"))
    got = receive_lot(server, trial.public, 2, "server")
    assert (got.id, got.seed, got.images) == (lot.id, lot.seed, 2)
    assert list(got.pieces) == list(trial.public.dealt_bytes(2, "server")) != []
    assert all(bytes(got.pieces[piece]) == bytes(lot.pieces[piece]) for piece in got.pieces)
    sending.join()
    assert client.sent == trial.public.lot_bytes(2, "server")


def test_masked_weights_are_the_same_from_a_channel_and_from_a_file(trial: Trial, ends: Ends) -> None:
    server, client = ends

    def send() -> None:
        for number, masked in trial.masked_weights.items():
            server.send(number, *masked)

    sending = sent_by(send)
    received = dict(receive_masked_weights(client, trial.public))
    sending.join()
    parsed = parse_masked_weights(bytearray(dump_masked_weights(trial.masked_weights)), trial.public)
    for found in (received, parsed):
        assert list(found) == list(trial.masked_weights)
        for number, masked in trial.masked_weights.items():
            assert all(torch.equal(*pair) for pair in zip(found[number], masked, strict=True))


def test_client_openings_keep_their_order_and_frames_their_session(trial: Trial, ends: Ends) -> None:
    server, client = ends
    openings = {
        piece: torch.randint(1 << 60, (3, *shape)) for piece, shape in reversed(trial.public.client_openings().items())
    }
    sending = sent_by(lambda: send_client_openings(client, trial.public, openings))
    found = receive_client_openings(server, trial.public, 3)
    sending.join()
    assert list(found) == list(openings)[::-1]
    assert all(torch.equal(found[piece], openings[piece]) for piece in found)
    begin(bytes(16), trial.public, server)
    client.send(0, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(EngineError, match="another session"):
        receive_client_openings(server, trial.public, 3)
