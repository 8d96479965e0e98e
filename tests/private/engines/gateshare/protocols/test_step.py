"""Every step of a private inference, put together from both shares, is that of the evaluation in the clear."""

import inspect
from pathlib import Path

import pytest
import torch

from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry
from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.local import (
    AffineStep,
    ConcatStep,
    DifferenceStep,
    InputStep,
    ResampleStep,
    ReshapeStep,
    ScatterStep,
    SelectStep,
    SumStep,
    TakeStep,
)
from deepshare.private.engines.gateshare.protocols.product import ProductStep
from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    networks,
    shared_resnet,
)


def test_every_tensor_is_exact_and_the_logits_are_those_of_the_network(trial: Trial) -> None:
    images = torch.randn(3, *SIZE)
    run = trial.run(images)
    expected: dict[int, torch.Tensor] = {}
    logits = fixed.evaluate(trial.schedule, images, run.shares, expected.__setitem__)
    assert set(expected) == set(range(len(trial.schedule.steps))) == set(run.values)
    for number, value in expected.items():
        assert torch.equal(run.values[number], value), f"{number} {trial.schedule.steps[number]}"
    assert torch.equal(run.logits, logits + run.noise)
    scale = trial.schedule.steps[trial.schedule.output].scale
    finer = trial.number_format.finer
    assert 2.0 ** (-9 - finer) < float(decode(run.noise, scale).abs().max()) <= 2.0 ** (-4 - finer)
    expected_logits = trial.program.evaluate(images)
    # Weights have 14 bits after the point, alpha and beta 12, or two more: the rest is their rounding.
    bound = 2.0 ** (-9 - finer) * float(expected_logits.abs().max())
    assert float((decode(logits, scale) - expected_logits).abs().max()) < bound


@pytest.mark.parametrize("who", ["dealer", "server", "client"])
def test_parties_multiply_in_either_way_together(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """One party has AVX-512, and the others have not."""
    torch.manual_seed(1)
    program = translate(shared_resnet(), SIZE)
    asked: list[str] = []

    def whole_is_faster(geometry: Geometry | None = None) -> bool:
        files = {Path(frame.filename).stem for frame in inspect.stack(0)}
        asked.extend(files & {"dealer", "server", "client"})
        return who in files

    monkeypatch.setattr("deepshare.private.engines.gateshare.crypto.limb_matmul.whole_is_faster", whole_is_faster)
    trial, images = Trial(program), torch.randn(2, *SIZE)
    assert {"dealer", "server", "client"} <= set(asked)
    run = trial.run(images)
    monkeypatch.setattr(
        "deepshare.private.engines.gateshare.crypto.limb_matmul.whole_is_faster", lambda geometry=None: False
    )
    assert torch.equal(run.logits, fixed.evaluate(trial.schedule, images, run.shares) + run.noise)


def test_the_networks_have_steps_of_every_kind() -> None:
    torch.manual_seed(1)
    kinds: set[object] = set()
    for network in networks().values():
        for step in Trial(translate(network, SIZE)).schedule.steps:
            kinds.add(type(step))
            if isinstance(step, GateStep):
                kinds |= {(step.leads, step.affine is not None), step.where is None}
            if isinstance(step, LinearStep):
                kinds.add(len(step.terms))
    assert kinds >= {InputStep, LinearStep, TruncationStep, SumStep, ConcatStep, ReshapeStep, ResampleStep, GateStep}
    assert kinds >= {OpeningStep, SquareStep, ProductStep, ScatterStep, SelectStep}
    assert kinds >= {DifferenceStep, AffineStep, TakeStep}
    assert kinds >= {(True, True), (False, True), (True, False), True, False, 2}
