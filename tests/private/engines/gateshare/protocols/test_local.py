"""Local steps give of two shares together what they give of the sum; noise hides what rounding tells about weights."""

from typing import Any

import pytest
import torch
from scipy.optimize import linprog  # type: ignore[import-untyped]
from torch import Tensor, nn

from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.fixedpoint import LEAST_BITS, SQUARED, NumberFormat
from deepshare.private.engines.gateshare.protocols.local import (
    ConcatStep,
    LocalStep,
    PermuteStep,
    ResampleStep,
    ReshapeStep,
    ScatterStep,
    SelectStep,
    SumStep,
    logit_noise,
)
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.alone import clear_steps, run_steps
from tests.private.engines.gateshare.trial import (
    Trial,
    polynomials,
)

ONE, TWO = (0,), (0, 0)
MASK = (torch.arange(32) % 3 == 0).view(2, 4, 4)
AVERAGE = Resampling(torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]), torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]))


def step(kind: type[LocalStep], inputs: tuple[int, ...], shape: tuple[int, ...], **fields: Any) -> LocalStep:
    return kind(number=1, operation=0, inputs=inputs, shape=shape, scale=16, **fields)


@pytest.mark.parametrize(
    "one",
    [
        step(SumStep, TWO, (2, 4, 4), lifts=(0, 3)),
        step(ConcatStep, TWO, (4, 4, 4), lifts=(2, 0)),
        step(ReshapeStep, ONE, (32,)),
        step(PermuteStep, ONE, (4, 2, 4), order=(2, 0, 1)),
        step(ResampleStep, ONE, (2, 2, 2), resampling=AVERAGE, factor=5, takes=(2, 4, 4)),
        step(SelectStep, TWO, (2, 4, 4), mask=MASK, lifts=(1, 0)),
        step(ScatterStep, ONE, (40,), where=torch.arange(32)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_shares_together_are_the_result(one: LocalStep) -> None:
    x = torch.randint(-(2**63), 2**63 - 1, (3, 32) if isinstance(one, ScatterStep) else (3, 2, 4, 4))
    result = run_steps([one], x)[1]
    assert result.shape[1:] == one.shape
    assert torch.equal(result, clear_steps([one], x)[1])


def recovered(logits: Tensor, shares: Tensor, bits: int, weight: Tensor, active: Tensor) -> float:
    """How well the last layer is found by regression of logits on what the client truncated of its own shares."""
    cut = (shares & ((1 << bits) - 1)).double() / 2**bits - 0.5
    found = torch.linalg.lstsq(cut[:, active], logits - logits.mean(0)).solution
    return float(torch.corrcoef(torch.stack([-found.T.flatten(), weight[:, active].flatten()]))[0, 1])


def test_noise_hides_what_rounding_of_squares_tells() -> None:
    """The same with squares: how far one is off depends on x, too."""
    torch.manual_seed(13)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), polynomials(24, 1, 1, share=0.0), nn.Linear(24, 8)).eval()
    program = translate(model, (3, 2, 2))
    trial = Trial(program, NumberFormat.usual(program))
    images = torch.randn(1, 3, 2, 2)
    run = trial.run(images.expand(2500, -1, -1, -1))
    number = next(
        n for n, step in enumerate(trial.schedule.steps) if isinstance(step, TruncationStep) and step.scale == SQUARED
    )
    with torch.no_grad():
        slope = 2 * model[2].square.flatten() * model[1](images.flatten(1))[0]  # type: ignore[operator]
        weight = (model[3].weight * slope).double()
    noisy, exact = (decode(logits, 30) for logits in (run.logits, run.logits - run.noise))
    every = torch.ones(24, dtype=torch.bool)
    assert recovered(exact, run.shares[number], 4, weight, every) > 0.7
    assert abs(recovered(noisy, run.shares[number], 4, weight, every)) < 0.5


@pytest.mark.parametrize("finer", [0, 2])
def test_noise_hides_what_rounding_tells_about_the_last_layer(finer: int) -> None:
    """One image asked 2,500 times: rounding depends on hidden values and on shares that the client knows."""
    torch.manual_seed(13)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8)).eval()
    program = translate(model, (3, 2, 2))
    trial = Trial(program, NumberFormat((LEAST_BITS + finer,) * len(program.operations), 8.0, finer))
    images = torch.randn(1, 3, 2, 2)
    run = trial.run(images.expand(2500, -1, -1, -1))
    number = next(n for n, step in enumerate(trial.schedule.steps) if isinstance(step, TruncationStep))
    with torch.no_grad():
        active = model[1](images.flatten(1))[0] > 0
    last = model[3]
    assert isinstance(last, nn.Linear)
    weight = last.weight.detach().double()
    noisy, exact = (decode(logits, 30 + 2 * finer) for logits in (run.logits, run.logits - run.noise))
    assert recovered(exact, run.shares[number], 14 + finer, weight, active) > 0.7
    assert abs(recovered(noisy, run.shares[number], 14 + finer, weight, active)) < 0.5


def chebyshev(inputs: Tensor, values: Tensor) -> Tensor:
    """The coefficients, with a constant, that make the largest residual smallest."""
    ones = torch.ones(len(inputs), 1)
    rows = torch.cat([torch.cat([inputs, ones, -ones], 1), torch.cat([-inputs, -ones, -ones], 1)])
    cost = [0.0] * (inputs.shape[1] + 1) + [1.0]
    found = linprog(cost, rows.numpy(), torch.cat([values, -values]).numpy(), bounds=(None, None), method="highs")
    return torch.from_numpy(found.x[: inputs.shape[1]])


def test_noise_has_no_bound_that_a_chebyshev_regression_could_use() -> None:
    """Of uniform noise of the same variance it sees through; ours it does not."""
    torch.manual_seed(14)
    count, signal, noise_bits, scale = 4000, 2.0**-11, -6, 30
    weight, cut = torch.randn(8, dtype=torch.float64), torch.rand(count, 8, dtype=torch.float64) - 0.5
    exact = signal * cut @ weight
    ours = decode(logit_noise((count,), noise_bits, scale), scale)
    uniform = 2.0**noise_bits * (2 * torch.rand(count, dtype=torch.float64) - 1)
    assert float(ours.var() / uniform.var()) == pytest.approx(1.0, abs=0.1)
    assert abs(float(ours.mean())) < 4 * 2.0**noise_bits / count**0.5

    def found(noise: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([chebyshev(cut, exact + noise), weight]))[0, 1])

    assert found(uniform) > 0.9
    assert abs(found(ours)) < 0.8
    assert float(ours.abs().max()) > 1.5 * 2.0**noise_bits  # of 4,000, beyond the bound of uniform noise
