"""Gates at the edges of their numbers, and ReLU as a special case."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.protocols.gate import AlphaBeta, GateStep
from deepshare.private.ir.program import GatedActivation, Program, SharedActivation
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.alone import clear_steps, run_steps
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
)


def test_own_gates_with_alpha_1_and_beta_0_are_relu() -> None:
    torch.manual_seed(2)
    program = translate(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)), SIZE)
    (number,) = (i for i, operation in enumerate(program.operations) if isinstance(operation, GatedActivation))
    relu, ones = program.operations[number], torch.ones(6, dtype=torch.float64)
    identity = SharedActivation(
        relu.name, relu.inputs, relu.shape, number, 6, torch.arange(6), ones, torch.zeros_like(ones)
    )
    operations = list(program.operations)
    operations[number] = identity
    images = torch.randn(4, *SIZE)
    trials = Trial(program), Trial(Program(tuple(operations)))
    runs = [trial.run(images) for trial in trials]
    for trial, run in zip(trials, runs, strict=True):
        steps = list(enumerate(trial.schedule.steps))
        gate = next(i for i, step in steps if isinstance(step, GateStep))
        x = run.values[trial.schedule.steps[gate].inputs[0]]
        assert torch.equal(run.values[gate], x.relu() << (trial.schedule.steps[gate].scale - 18))
        expected_logits = program.evaluate(images)
        values = decode(run.logits - run.noise, trial.schedule.steps[trial.schedule.output].scale)
        assert float((values - expected_logits).abs().max()) < 2.0**-9


@pytest.mark.parametrize("value", [0, -1, 1, (1 << 33) - 1, -(1 << 33)])
def test_gates_at_zero_and_at_the_ends_of_their_range(value: int) -> None:
    """The first neuron of a leader holds exactly this number."""
    torch.manual_seed(5)
    trial = Trial(translate(nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2)))
    trial.number_format = replace(trial.number_format, limit=1e9)
    run = trial.run(torch.full((2, 3, 2, 2), value / 2**18, dtype=torch.float64))
    gate = next(n for n, step in enumerate(trial.schedule.steps) if isinstance(step, GateStep))
    assert set(run.values[gate].unique().tolist()) == {max(value, 0)}


def activation(number: int, *, leads: bool, affine: bool, where: Tensor | None, cells: Tensor | None) -> GateStep:
    """Step of six channels of 2x2 whose gates are those of the first two, or of single neurons."""
    neurons = (6, 2, 2) if where is None else (len(where),)
    prototypes = 2 if where is None else neurons[0]
    gates = (prototypes, *neurons[1:]) if cells is None else (int(cells.max()) + 1,)
    values = torch.randint(-100, 100, (2, 6)).double() / 16
    return GateStep(
        number=number,
        operation=number,
        inputs=(0,),
        shape=(6, 2, 2),
        scale=16,
        leader=1,
        leads=leads,
        neurons=neurons,
        prototypes=prototypes,
        gates=gates,
        bits=32,
        pi=torch.arange(6) % 2 if where is None else None,
        cells=cells,
        where=where,
        affine=AlphaBeta(values[0], values[1]) if affine else None,
        affine_bits=4,
        affine_limit=8,
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("where", "cells"),
    [
        (None, None),
        (None, torch.tensor([0, 0, 1, 1, 2, 2, 2, 2])),
        (torch.tensor([1, 5, 23]), None),
        (torch.tensor([1, 5, 23]), torch.tensor([0, 1, 0])),
    ],
)
def test_a_leader_and_a_follower_alone(affine: bool, where: Tensor | None, cells: Tensor | None) -> None:
    affine = affine and where is None
    steps = [activation(n, leads=n == 1, affine=affine, where=where, cells=cells) for n in (1, 2)]
    x = torch.randint(-(2**28), 2**28, (3, 6, 2, 2))
    x[0, :2] = torch.tensor([[[0, -1], [1, -(2**28)]]] * 2)
    found, expected = run_steps(steps, x), clear_steps(steps, x)
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])
    assert steps[0].comparisons > 0 == steps[1].comparisons
