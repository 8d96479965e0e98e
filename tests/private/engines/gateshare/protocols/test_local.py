"""Local steps: of two shares together they give what they give of the sum."""

import pytest
import torch

from deepshare.private.engines.gateshare.crypto.limb_matmul import Resampling
from deepshare.private.engines.gateshare.protocols.local import (
    ConcatStep,
    LocalStep,
    PermuteStep,
    ResampleStep,
    ReshapeStep,
    ScatterStep,
    SelectStep,
    SumStep,
)
from tests.private.engines.gateshare.alone import clear_steps, run_steps

ONE, TWO = (0,), (0, 0)
MASK = (torch.arange(32) % 3 == 0).view(2, 4, 4)
AVERAGE = Resampling(torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]), torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]))


def step(kind: type[LocalStep], inputs: tuple[int, ...], shape: tuple[int, ...], **fields: object) -> LocalStep:
    return kind(number=1, operation=0, inputs=inputs, shape=shape, scale=16, **fields)


@pytest.mark.parametrize(
    "one",
    [
        step(SumStep, TWO, (2, 4, 4), lifts=(0, 3)),
        step(ConcatStep, TWO, (4, 4, 4), lifts=(2, 0)),
        step(ReshapeStep, ONE, (32,)),
        step(PermuteStep, ONE, (4, 2, 4), order=(2, 0, 1)),
        step(ResampleStep, ONE, (2, 2, 2), resampling=AVERAGE, factor=5),
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
