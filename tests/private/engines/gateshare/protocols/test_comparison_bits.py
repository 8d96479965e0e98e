"""Comparisons of fewer bits: which gates are wrong, how often, and what it saves."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepshare import private
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import reference
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import offline
from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import (
    COMPARED_MARGIN,
    WRONG,
    NumberFormat,
    calibrate,
    comparison_bits_of,
    predicted_format,
)
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from tests.private.engines.gateshare.alone import run_steps
from tests.private.engines.gateshare.trial import SIZE, Trial, shared_resnet


def relu(elements: int, bits: int, dropped: int) -> GateStep:
    """ReLU of a vector."""
    return GateStep(
        number=1,
        operation=1,
        inputs=(0,),
        shape=(elements,),
        scale=16,
        leader=1,
        leads=True,
        neurons=(elements,),
        prototypes=elements,
        gates=(elements,),
        bits=bits,
        pi=None,
        cells=None,
        where=None,
        affine=None,
        affine_bits=0,
        affine_limit=8,
        dropped=dropped,
    )


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_only_gates_near_zero_can_be_wrong(data: st.DataObject) -> None:
    bits, dropped = data.draw(st.integers(8, 24), "bits"), data.draw(st.integers(0, 12), "dropped")
    half, end = 1 << dropped >> 1, (1 << (bits + dropped - 1)) - (1 << dropped)
    edges = [0, 1, -1, half, -half, half - 1, 1 - half, end, -end]
    x = torch.tensor([edges + data.draw(st.lists(st.integers(-end, end), min_size=7, max_size=7), "x")])
    x = x.clamp(-end, end)
    y = run_steps([relu(x.shape[1], bits, dropped)], x)[1]
    sure = x.abs() >= half
    assert torch.equal(y[sure], x[sure].relu())
    assert bool(((y == x) | (y == 0)).all())


@pytest.mark.parametrize("value", [-48, -16, 0, 16, 48])
def test_a_gate_is_wrong_as_often_as_is_said(value: int) -> None:
    count, dropped = 20_000, 6
    # Of y nothing tells a gate at zero: two neurons share it, of which the second is not near zero.
    step = replace(relu(2, 16, dropped), shape=(2, count), neurons=(2, count), prototypes=1, gates=(1, count))
    step = replace(step, pi=torch.zeros(2, dtype=torch.long))
    x = torch.stack([torch.full((count,), value), torch.full((count,), 1 << 16)])[None]
    gates = run_steps([step], x)[1][0, 1] == 1 << 16
    wrong = float((gates != (value >= 0)).double().mean())
    assert abs(wrong - max(0.0, 0.5 - abs(value) / 2**dropped)) < 5 * (0.25 / count) ** 0.5


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(63)
    return translate(shared_resnet(), SIZE)


def test_a_whole_network_equals_the_reference_given_what_decides_gates_near_zero(program: Program) -> None:
    # More are dropped than would be calibrated, so that some gates are wrong.
    numbers = calibrate(program, comparison_bits="calibrated")
    assert numbers.compared is not None
    trial = Trial(program, replace(numbers, dropped=tuple(max(0, bits - 10) for bits in numbers.compared)))
    images = torch.randn(3, *SIZE)
    for_server, for_client = trial.lots(len(images))
    leaders = [step for step in trial.schedule.steps if isinstance(step, GateStep) and step.leads]
    thresholds = {}
    for step in leaders:
        a_S, a_C = (lot.mask("neurons", step.number, step.neurons) for lot in (for_server, for_client))
        thresholds[step.number] = step.thresholds(-step.compared(a_S + a_C))
    material = trial.client.preprocess(for_client, fresh_seed())
    run = trial.online(images, [(for_server, range(len(images)))], material, dict(trial.public.seen))
    logits = run.logits - run.noise
    assert torch.equal(logits, reference.evaluate(trial.schedule, images, run.shares, thresholds=thresholds))
    assert not torch.equal(logits, reference.evaluate(trial.schedule, images, run.shares))


def test_calibrated_bits_leave_the_margin_and_the_share_of_wrong_gates_that_are_said(program: Program) -> None:
    numbers, wrong, gates = calibrate(program, torch.randn(64, *SIZE), "calibrated"), 0.0, 0
    synthetic = calibrate(program, comparison_bits="calibrated")  # not as near to real images: more careful
    assert sum(synthetic.dropped) < sum(numbers.dropped)
    images = torch.randn(512, *SIZE)
    values: dict[int, torch.Tensor] = {}
    program.evaluate(images, lambda number, value: values.update({number: value}))
    for step in schedule(program, numbers).steps:
        if isinstance(step, GateStep) and step.leads:
            x = step.compared(step.picked(values[program.operations[step.operation].inputs[0]]))
            assert float(x.abs().max()) * 2**numbers.fraction < 2 ** (step.bits + step.dropped - COMPARED_MARGIN)
            assert step.dropped > 2 and step.bits < 24
            wrong += float((0.5 - x.abs() * 2.0 ** (numbers.fraction - step.dropped)).clamp(min=0).sum())
            gates += len(x)
    assert 0 < wrong / gates < 2 * WRONG  # on other images


def test_bytes_are_those_predicted(program: Program) -> None:
    full = offline(program, 1).dealer_bytes
    for wanted in ("calibrated", "20"):
        numbers = calibrate(program, comparison_bits=comparison_bits_of(wanted))
        steps = schedule(program.outline(), numbers)
        _, said = find_engine("gateshare").predict(program, 1, {"comparison_bits": wanted})
        assert said.dealer_bytes == steps.lot_bytes(1, "server") + steps.lot_bytes(1, "client") < full
        leaders = [step for step in steps.steps if isinstance(step, GateStep) and step.leads]
        assert wanted == "calibrated" or {step.bits for step in leaders} == {20}
        keys = [
            (dcf.key_bytes(step.comparisons, 33), dcf.key_bytes(step.comparisons, step.bits - 1)) for step in leaders
        ]
        assert full - said.dealer_bytes == 2 * sum(all_bits - fewer for all_bits, fewer in keys)


@pytest.mark.slow
def test_three_processes_with_calibrated_comparisons() -> None:
    torch.manual_seed(64)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    images, options = torch.randn(2, *SIZE), {"comparison_bits": "calibrated"}
    result = private.infer(model, images, options=options)
    assert result.cost.error is not None and result.cost.error < 0.1
    _, said = find_engine("gateshare").predict(translate(model, SIZE), 2, options)
    assert result.cost.offline.dealer_bytes % said.dealer_bytes == 0


def test_the_format_with_bits_of_comparisons_as_a_message(program: Program) -> None:
    numbers = calibrate(program, comparison_bits="calibrated")
    said = numbers.dump()
    assert NumberFormat.parse(said, program) == numbers
    assert set(calibrate(program).dump()) == {"ranges", "limit", "finer"}  # as earlier releases read it
    count = len(program.operations)
    for compared, dropped in ((7, 0), (60, 0), ("24", 0), (24, -1), (24, 1.0), (24, 17), (0, 1), (True, 0)):
        with pytest.raises(EngineError, match="number format"):
            NumberFormat.parse(said | {"compared": [compared] * count, "dropped": [dropped] * count}, program)
    for wrong in ({"compared": 24}, {"dropped": None}, {"dropped": [0]}):
        with pytest.raises(EngineError, match="number format"):
            NumberFormat.parse(said | wrong, program)


def test_bits_that_would_be_wrong_too_often_are_refused(program: Program) -> None:
    for bits in (2, 10, 45):
        with pytest.raises(EngineError, match=r"needs at least \d+ for less than one wrong gate in 1,000"):
            calibrate(program, comparison_bits=bits)
    for text in ("", "many", "-3", "²"):
        with pytest.raises(EngineError, match="give a number, or calibrated"):
            comparison_bits_of(text)
    with pytest.raises(EngineError, match="no weights to calibrate on"):
        predicted_format(program.outline(), "calibrated")
    with pytest.raises(EngineError, match="gateshare-2pc compares all bits"):
        schedule(program, calibrate(program, comparison_bits="calibrated"), dealt=False)
    with pytest.raises(EngineError, match="has no option comparison_bits"):
        find_engine("gateshare-2pc").check(program, {"comparison_bits": "20"})
    with pytest.raises(EngineError, match="has no option dealer=pool, comparison_bits=20"):
        find_engine("gateshare").check(program, {"dealer": "pool", "comparison_bits": "20"})
