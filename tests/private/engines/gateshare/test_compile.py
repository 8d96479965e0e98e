"""Steps of a network, and networks that are refused."""

from typing import cast

import pytest
import torch
from torch import nn

from deepshare import zoo
from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.cost import predict as predict_cost
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.hinted import check_weights
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat, calibrate
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from tests.private.engines.gateshare.trial import SIZE, shared_resnet


def test_steps_of_a_shared_residual_network() -> None:
    program = translate(shared_resnet(8, 2000, (3, 32, 32)), (3, 32, 32)).outline()
    steps = schedule(program, NumberFormat.usual(program))
    gates = [step for step in steps.steps if isinstance(step, GateStep)]
    assert len(gates) == 16 and sum(step.comparisons for step in gates) == 2000
    products = [step for step in steps.steps if isinstance(step, LinearStep)]
    # 20 convolutions, of which three stand beside another in a sum, and the last layer.
    assert len(products) == 18 and sum(len(step.terms) for step in products) == 21
    # 17 sums of convolutions are truncated, the result of every activation, and the average.
    shifts = [step for step in steps.steps if isinstance(step, TruncationStep)]
    assert [step.by for step in shifts].count(16) == 17 and [step.by for step in shifts].count(14) == 16
    assert {(step.by, step.window) for step in shifts} == {(16, 1 << 40), (14, 1 << 38), (4, 1 << 28)}
    # One mask for each tensor that is multiplied: images, first layer, 16 activations but the last, and the average.
    assert sum(name == "tensor" for _, name in steps.client_openings()) == 18


def test_about_one_in_two_hundred_lots_of_resnet18_is_thrown_away() -> None:
    program = translate(zoo.resnet18(), (3, 32, 32)).outline()
    shifts = [step for step in schedule(program, NumberFormat.usual(program)).steps if isinstance(step, TruncationStep)]
    assert sum(step.elements * 2 * step.window / 2**64 for step in shifts) == pytest.approx(
        17 * 2**16 * 2**-27 / 2, rel=0.01
    )


def test_numbers_so_large_that_no_lot_would_do_are_refused() -> None:
    program = translate(shared_resnet(), SIZE)
    numbers = NumberFormat((64,) * len(program.operations), 8.0)
    with pytest.raises(EngineError, match="shares would fall where they cannot be used"):
        schedule(program, numbers)


def test_what_it_cannot_do_is_refused_with_a_cure() -> None:
    with pytest.raises(EngineError, match="engine gateshare has no option provider=ttp"):
        predict_cost(nn.Conv2d(3, 4, 3), SIZE, "gateshare", options={"provider": "ttp"})
    large = nn.Conv2d(3, 4, 1)
    nn.init.constant_(large.weight, 257.0)
    with pytest.raises(UnsupportedModelError, match="its weight reaches 257, above 256"):
        predict_cost(large, SIZE, "gateshare")


def _summing(total: float, branches: int = 1) -> Program:
    """Layers of 81 equal weights an output, whose results are added."""

    class Summing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(81, 2) for _ in range(branches))
            for layer in self.layers:
                nn.init.constant_(cast(nn.Linear, layer).weight, total / branches / 81)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum((layer(x) for layer in self.layers), torch.zeros(()))

    return translate(Summing().eval(), (81,))


@pytest.mark.parametrize("branches", [1, 4])
def test_weights_that_encryption_cannot_add_are_refused_at_once(branches: int) -> None:
    two_party = find_engine("gateshare-2pc")
    for total in (900.0, 3900.0, 10_261.0, 16_380.0):
        program = _summing(total, branches)
        two_party.check(program, {})
        numbers = calibrate(program, dealt=False)
        for step in schedule(program, numbers, dealt=False).steps:
            check_weights(step.hinted_weights())
    assert calibrate(_summing(900.0, branches), dealt=False).finer > numbers.finer == 0
    program = _summing(16_400.0, branches)
    find_engine("gateshare").check(program, {})
    with pytest.raises(UnsupportedModelError, match=r"add up to 16,400, not below 16,384 .*: train with weight decay"):
        two_party.check(program, {})
