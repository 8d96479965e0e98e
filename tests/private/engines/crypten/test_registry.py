"""The cost of the paper's network, without running it."""

from dataclasses import replace

import pytest
import torch

from deepshare import plan, share, zoo
from deepshare.private.engines.crypten.registry import IMPLEMENTATIONS
from deepshare.private.ir.program import OPERATIONS, GatedActivation, Program, SharedActivation, TopClasses
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.outcome import Part

SIZE, BUDGET, NEURONS = (3, 32, 32), 6_000, 491_520


def activations(program: Program, images: int = 1) -> Part:
    online, _ = find_engine("crypten").predict(program, images, {})
    gated = (n for n, op in enumerate(program.operations) if isinstance(op, SharedActivation | GatedActivation))
    return sum((online[number] for number in gated), Part())


def masked(program: Program, coefficients: bool) -> Program:
    """As many gates, here and there, with a quadratic function elsewhere or none."""
    chosen = torch.zeros(NEURONS, dtype=torch.bool)
    chosen[torch.randperm(NEURONS, generator=torch.Generator().manual_seed(0))[:BUDGET]] = True
    operations, place = [], 0
    for operation in program.operations:
        if isinstance(operation, GatedActivation):
            mask = chosen[place : place + operation.elements].view(operation.shape)
            some = torch.zeros(operation.shape[0], 1, 1) if coefficients else None
            operation = replace(operation, mask=mask, square=some, linear=some, constant=some)
            place += mask.numel()
        operations.append(operation)
    return Program(tuple(operations))


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    torch.manual_seed(0)
    model = zoo.resnet18(num_classes=100)
    relu = translate(model, SIZE)
    shared = translate(share(model, plan(model, SIZE, BUDGET)), SIZE)
    return {"relu": relu, "shared": shared, "snl": masked(relu, False), "autorep": masked(relu, True)}


def test_what_each_party_sends_for_activations(programs: dict[str, Program]) -> None:
    gate = 27 * 8
    sent = {name: activations(program).server_bytes for name, program in programs.items()}
    assert sent == {
        "relu": NEURONS * (gate + 8),
        "shared": NEURONS * 8 + BUDGET * gate,
        "snl": BUDGET * (gate + 8),
        "autorep": BUDGET * (gate + 8) + (NEURONS - BUDGET) * 16,
    }
    assert sent["relu"] / sent["shared"] > 21
    assert sent["shared"] < 0.6 * sent["autorep"]


def test_rounds_and_comparisons_for_activations(programs: dict[str, Program]) -> None:
    costs = {name: activations(program) for name, program in programs.items()}
    assert {name: cost.rounds for name, cost in costs.items()} == {
        "relu": 16 * 8,
        "shared": 4 * 8 + 12,
        "snl": 16 * 8,
        "autorep": 16 * 9,
    }
    assert {cost.comparisons for name, cost in costs.items() if name != "relu"} == {BUDGET}


def test_more_images_cost_more_bytes_and_no_more_rounds(programs: dict[str, Program]) -> None:
    engine = find_engine("crypten")
    one, dealt = engine.predict(programs["shared"], 1, {})
    three, dealt_three = engine.predict(programs["shared"], 3, {"provider": "ttp"})
    for number, part in one.items():
        assert three[number].server_bytes == 3 * part.server_bytes and three[number].rounds == part.rounds
    assert dealt_three == Part(dealer_bytes=3 * dealt.dealer_bytes)


def test_an_outline_is_enough(programs: dict[str, Program]) -> None:
    engine = find_engine("crypten")
    for program in programs.values():
        assert engine.predict(program.outline(), 2, {}) == engine.predict(program, 2, {})


def test_every_operation_has_an_implementation_or_is_refused() -> None:
    assert set(IMPLEMENTATIONS) == set(OPERATIONS) - {TopClasses}
