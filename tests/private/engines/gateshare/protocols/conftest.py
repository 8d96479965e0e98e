"""Sessions of networks with steps of every kind."""

import pytest
import torch

from deepshare.private.engines.gateshare.fixedpoint import LEAST_BITS, NumberFormat
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    networks,
)


@pytest.fixture(
    scope="module",
    params=["shared", "plain", "odd", "curved", "quadratic", "apart", "excited", "excited and shared", "coarse"],
)
def trial(request: pytest.FixtureRequest) -> Trial:
    torch.manual_seed(1)
    if request.param == "coarse":
        program = translate(networks()["curved"], SIZE)
        return Trial(program, NumberFormat((LEAST_BITS,) * len(program.operations), 8.0))
    return Trial(translate(networks()[request.param], SIZE))
