"""Costs from shapes alone: the formulas of the protocol, to the byte."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from deepshare import plan, share, zoo
from deepshare.private.cost import cost_comparison
from deepshare.private.cost import predict as predict_cost
from deepshare.private.engines.gateshare import cost_model
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.dcf import key_bytes
from deepshare.private.engines.gateshare.crypto.ot import extension_bytes
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from deepshare.private.ir.program import Program, SharedActivation
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.outcome import Part
from tests.private.engines.gateshare.trial import SIZE, Apart, Odd, Quadratic, Trial, curved_resnet, shared_resnet

RESNET = (3, 32, 32)
N = 491_520
LINEAR = N + 64 * 32 * 32 + 100  # results of linear layers: as many as activations, the first layer, the logits


@pytest.fixture(scope="module")
def shared() -> Program:
    with torch.device("meta"):
        model = zoo.resnet18(num_classes=100)
    return translate(share(zoo.resnet18(num_classes=100), plan(model, RESNET, 6_000)), RESNET).outline()


@pytest.fixture(scope="module")
def relu() -> Program:
    return translate(zoo.resnet18(num_classes=100), RESNET).outline()


def test_resnet18_with_6000_gates_online(shared: Program) -> None:
    parts = cost_model.online(shared, 1)
    bits = sum(-(-op.comparisons // 8) for op in shared.operations if isinstance(op, SharedActivation) and op.leads)
    assert bits == 750
    total = sum(parts.values(), Part())
    assert total.server_bytes == 8 * N + bits + 8 * 100
    assert total.client_bytes == 8 * N + bits + 8 * 3 * 32 * 32
    assert (total.rounds, total.comparisons) == (17, 6_000)
    for number, operation in enumerate(shared.operations):
        if isinstance(operation, SharedActivation):
            sent = 8 * operation.elements + (-(-operation.comparisons // 8) if operation.leads else 0)
            assert parts[number].server_bytes == parts[number].client_bytes == sent
            assert parts[number].rounds == 1


def test_resnet18_offline_and_once(shared: Program, relu: Program) -> None:
    steps = schedule(shared, NumberFormat.usual(shared))
    keys = sum(key_bytes(op.comparisons, 31) for op in shared.operations if op.comparisons)
    assert keys == 403 * 6_000
    # Corrections: one for each result of linear layers, two for each activation; eight bytes and a bit for a gate.
    assert steps.lot_bytes(1, "server") == 48 + 8 * (LINEAR + 2 * N) + 8 * 6_000 + 750 + keys
    assert steps.lot_bytes(1, "client") == 48 + keys
    # Ahead: every activation, and every tensor that is multiplied by weights.
    assert cost_model.opening_bytes(steps) == 8 * (N + (3 * 32 * 32 + 64 * 32 * 32 + N - 512 * 4 * 4 + 512))
    once = cost_model.session(shared)
    weights = sum(t.numel() for op in shared.operations if (t := getattr(op, "weight", None)) is not None)
    channels = sum(op.shape[0] for op in shared.operations if isinstance(op, SharedActivation))
    assert once == Part(server_bytes=8 * weights + 16 * channels, dealer_bytes=32)
    assert once.server_bytes == pytest.approx(89.5e6, rel=0.01)
    plain = schedule(relu, NumberFormat.usual(relu))
    # Far more for all ReLUs than for shared gates.
    assert plain.lot_bytes(1, "server") == 48 + 8 * (LINEAR + N) + N * 8 + N // 8 + 403 * N
    assert plain.lot_bytes(1, "client") == 48 + 403 * N > 81 * steps.lot_bytes(1, "client")
    assert plain.lot_bytes(1, "server") > 14 * steps.lot_bytes(1, "server")


def test_keys_for_alpha_and_beta_are_sent_once_where_there_is_no_dealer(shared: Program) -> None:
    channels = sum(op.shape[0] for op in shared.operations if isinstance(op, SharedActivation))
    once = cost_model.session(shared, dealt=False)
    # Alpha and beta in two digits of eight bits each.
    base = 32 + 128 * 32
    assert once.server_bytes == base + extension_bytes(4 * 8 * channels)
    assert once.client_bytes == base + 8 + 32 * 4 * 8 * channels
    cost = predict_cost(shared, RESNET, "gateshare-2pc")
    assert cost.session == once
    assert "Sent once, before the first of any number of images: 5.9 MB (net)." in cost_comparison({"net": cost})


def test_hints_are_sent_once_for_batches_of_one_size(shared: Program) -> None:
    steps = schedule(shared, NumberFormat.usual(shared), dealt=False)
    # At 32x32 two channels fit a polynomial, at 16x16 eight, at 8x8 thirty-two, at 4x4 and 1x1 as many as may be; and
    # kernels of one position twice as many at 16x16 and 8x8.
    polynomials = 5 * 64 // 2 + 4 * 128 // 8 + 128 // 16 + 4 * 256 // 32 + 256 // 64 + 5 * 512 // 64 + 2
    assert steps.hint_cost([1]).server_bytes == pytest.approx(polynomials * 4096 * 10, rel=1e-3)
    # The figures of docs/private.md.
    assert steps.hint_cost([1]).server_bytes == pytest.approx(12.7e6, rel=0.005)
    made = cost_model.offline(shared, 1, dealt=False)
    assert made.server_bytes + made.client_bytes == pytest.approx(51.1e6, rel=0.002)
    once = cost_model.session(shared, dealt=False)
    assert once.server_bytes + once.client_bytes == pytest.approx(5.9e6, rel=0.005)
    assert steps.hint_cost([1, 1]) == steps.hint_cost([1])
    assert steps.hint_cost([1, 8]).server_bytes <= (steps.hint_cost([1]) + steps.hint_cost([8])).server_bytes
    first, both = (cost_model.offline(shared, images, dealt=False).server_bytes for images in (1, 2))
    assert both < 2 * first


def test_a_batch_packs_its_bits_together_and_a_large_one_goes_in_turns(shared: Program, relu: Program) -> None:
    one, three = (sum(cost_model.online(shared, n).values(), Part()) for n in (1, 3))
    assert three.server_bytes == 3 * one.server_bytes and three.rounds == one.rounds
    assert cost_model.inferences(shared, 3) == [3]
    turns = cost_model.inferences(relu, 5)
    assert sum(turns) == 5 and len(turns) > 1
    assert sum(cost_model.online(relu, 5).values(), Part()).rounds == 17 * len(turns)


@pytest.mark.parametrize("network", [shared_resnet, Odd, curved_resnet, Quadratic, Apart])
def test_what_is_measured_is_what_was_predicted(network: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    trial = Trial(translate(network().eval(), SIZE))
    run = trial.run(torch.randn(3, *SIZE))
    for number, part in cost_model.online(trial.program.outline(), 3).items():
        together = run.server[number].beside(run.client[number])
        assert vars(together) | {"seconds": 0.0} == vars(part), trial.program.operations[number].name


def waits(program: Program) -> int:
    """How often the server waits for a message that the client sends only after it has got one, and the logits."""
    asked, count = False, 1
    for step in schedule(program, NumberFormat.usual(program)).steps:
        if isinstance(step, OpeningStep):
            asked = True
        elif isinstance(step, GateStep) or (isinstance(step, SquareStep) and asked):
            asked, count = False, count + 1
    return count


@pytest.mark.parametrize(("network", "rounds"), [(shared_resnet, 17), (curved_resnet, 17), (Quadratic, 5), (Apart, 5)])
def test_squares_that_are_open_share_a_round_trip(network: Callable[[], nn.Module], rounds: int) -> None:
    torch.manual_seed(1)
    program = translate(network().eval(), SIZE)
    assert sum(cost_model.online(program, 1).values(), Part()).rounds == waits(program) == rounds


def test_squares_offline_and_once() -> None:
    torch.manual_seed(1)
    without, squares = (translate(network(), SIZE) for network in (shared_resnet, curved_resnet))
    elements = sum(op.elements for op in without.operations if isinstance(op, SharedActivation))
    channels = sum(op.shape[0] for op in without.operations if isinstance(op, SharedActivation))
    numbers = NumberFormat.usual(squares)
    one, other = (
        schedule(program, NumberFormat((32,) * len(program.operations), 8.0)) for program in (without, squares)
    )
    assert (numbers.finer, NumberFormat.usual(without).finer) == (0, 2)
    assert other.lot_bytes(1, "server") - one.lot_bytes(1, "server") == 16 * elements
    assert other.lot_bytes(1, "client") == one.lot_bytes(1, "client")
    assert cost_model.opening_bytes(other) - cost_model.opening_bytes(one) == 24 * elements
    assert cost_model.session(squares).server_bytes - cost_model.session(without).server_bytes == 16 * channels


def test_the_interface(shared: Program) -> None:
    cost = predict_cost(shared, RESNET, "gateshare", images=2)
    assert cost.online.comparisons == 12_000 and cost.online.rounds == 17
    assert cost.offline.dealer_bytes > 2 * 25 * N and cost.activations.server_bytes == 2 * (8 * N + 750)
    assert find_engine("gateshare").roles({}) == ("server", "client", "dealer")
