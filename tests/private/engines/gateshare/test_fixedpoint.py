"""The number format: bits with a margin, and images outside of it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.errors import EngineError
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.cost_model import inferences
from deepshare.private.engines.gateshare.fixedpoint import (
    FRACTION,
    LEAST_BITS,
    NumberFormat,
    calibrate,
    range_bits,
    synthetic,
)
from deepshare.private.engines.gateshare.protocols.square import SquareStep
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.program import Convolution, Program
from deepshare.private.ir.trace import translate, with_answer
from tests.private.engines.gateshare.trial import SIZE, shuffled_norms


@pytest.mark.parametrize(
    ("largest", "bits"), [(0.0, 32), (1.0, 32), (32.0, 32), (32.5, 33), (64.0, 33), (1000.0, 37), (math.inf, 45)]
)
def test_ranges_leave_a_factor_of_1024(largest: float, bits: int) -> None:
    assert range_bits(largest) == bits
    if bits < 45:
        assert largest * 2**FRACTION * 2**10 <= 2 ** (bits - 1)


def test_calibration_covers_every_operation_on_images_of_the_server_or_synthetic_ones() -> None:
    program = translate(shuffled_norms(zoo.resnet18(width=4, num_classes=10)), SIZE)
    for samples in (None, 20 * torch.randn(4, *SIZE)):
        numbers = calibrate(program, samples)
        images = synthetic(SIZE) if samples is None else samples
        seen: list[float] = []
        program.evaluate(images, lambda _, value, seen=seen: seen.append(float(value.abs().max())))  # type: ignore[misc]
        assert numbers.finer == 2
        assert numbers.ranges == tuple(range_bits(largest) + numbers.finer for largest in seen)
        assert 2 * seen[0] <= numbers.limit < 4 * seen[0] + 1e-9
    assert max(numbers.ranges) > LEAST_BITS + 2


def test_images_outside_the_range_are_refused() -> None:
    numbers = calibrate(translate(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU()), SIZE))
    images = torch.zeros(3, *SIZE)
    numbers.check(images)
    images[1, 0, 0, 0] = -8.5
    with pytest.raises(
        EngineError, match=r"image 1 holds 8\.5 and the network was calibrated for numbers from -8 to 8"
    ):
        numbers.check(images)


def test_squares_that_explode_on_noise_may_be_measured_on_images() -> None:
    square = GatedPolynomial((3, 8, 8), [torch.full((1, 1, 1), value) for value in (1.0, 0.0, 0.0)])
    square.set_mask(torch.zeros(3, 8, 8, dtype=torch.bool))
    program = translate(nn.Sequential(*[square] * 5), SIZE)
    with pytest.raises(
        EngineError, match=r"4\.29e\+09, too large .*: measure on .* deepshare private outline --samples"
    ):
        calibrate(program)
    steps = schedule(program, calibrate(program, torch.full((1, *SIZE), 0.9))).steps
    squared = [
        step for step in steps if isinstance(step, TruncationStep) and isinstance(steps[step.inputs[0]], SquareStep)
    ]
    # The squares of all numbers that can be truncated themselves: up to 2^6, with 12 bits after the point.
    assert [(step.scale + step.by, step.window) for step in squared] == [(24, 2**36)] * 5
    with pytest.raises(EngineError, match="too large for fixed point: train with BatchNorm"):
        calibrate(program, torch.full((1, *SIZE), 4.0))


def test_a_network_that_explodes_is_refused() -> None:
    program = translate(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1)), SIZE)
    first, last = (replace(op, weight=op.weight * 1000) for op in program.operations if isinstance(op, Convolution))
    exploding = Program((program.operations[0], first, program.operations[2], last))
    with pytest.raises(EngineError, match=r"2 reaches .* too large for fixed point"):
        calibrate(exploding, 20 * torch.randn(8, *SIZE))


def test_the_format_as_a_message() -> None:
    program = translate(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU()), SIZE)
    numbers = calibrate(program)
    assert NumberFormat.parse(numbers.dump(), program) == numbers == NumberFormat.usual(program)
    for wrong in (
        None,
        {},
        {"ranges": [34, 34, 34], "limit": 8},
        {"ranges": [34, 34], "limit": 8, "finer": 2},
        {"ranges": [34, 34, 64], "limit": 8, "finer": 2},
        {"ranges": [34, 34, 33], "limit": 8, "finer": 2},
        {"ranges": [34, 34, 3.4], "limit": 8, "finer": 2},
        {"ranges": [34, 34, 47], "limit": 8, "finer": 2},
        {"ranges": [34, 34, 34], "limit": 8, "finer": 1},
        {"ranges": [34, 34, 34], "limit": 8, "finer": 2.0},
        {"ranges": [34, 34, 34], "limit": "inf", "finer": 2},
    ):
        with pytest.raises(EngineError, match="number format"):
            NumberFormat.parse(wrong, program)


def test_few_numbers_are_finer_unless_a_weight_is_too_large_for_that() -> None:
    large, small = (translate(zoo.resnet18(width=width), (3, 32, 32)) for width in (64, 16))
    assert (
        NumberFormat.usual(large).finer == 0
        and NumberFormat.usual(small).finer == NumberFormat.usual(small.outline()).finer == 2
    )
    # Numbers of an untrained network grow from layer to layer: too large to be finer as well.
    assert max(calibrate(small).ranges) > LEAST_BITS and calibrate(small).finer == 0
    shifts = [step for step in schedule(small, NumberFormat.usual(small)).steps if isinstance(step, TruncationStep)]
    assert 0.01 < sum(step.elements * 2 * step.window / 2**64 for step in shifts) < 0.025
    operations = list(small.operations)
    operations[1] = replace(operations[1], weight=torch.full_like(operations[1].weight, 65.0))  # type: ignore[call-arg, attr-defined]
    heavy = Program(tuple(operations))
    assert calibrate(heavy, torch.full((1, 3, 32, 32), 2.0**-10)).finer == 0
    # Both sides cut a batch alike, with weights or without.
    assert list(inferences(heavy, 100)) == list(inferences(heavy.outline(), 100))


class Scaled(nn.Module):
    """Numbers that are made small, and large again later."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc, self.scale = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4), scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        return self.fc((x * self.scale).mean((2, 3)) / self.scale)


def test_numbers_that_vanish_are_refused_by_name() -> None:
    calibrate(translate(Scaled(1e-2).eval(), SIZE))
    with pytest.raises(EngineError, match=r"own \w+ reaches only .*e-06, and rounding to 2\^-18 changes the answer"):
        calibrate(translate(Scaled(1e-6).eval(), SIZE))
    quiet = Scaled(1.0).eval()
    for value in quiet.fc.parameters():
        value.data *= 1e-3
    with pytest.raises(EngineError, match=r"fc: the logits differ by .*, less than the noise .*: train the network"):
        calibrate(translate(quiet, SIZE))
    calibrate(with_answer(translate(quiet, SIZE), "class"))
    quiet.fc = nn.Linear(8, 1)
    for value in quiet.fc.parameters():
        value.data *= 1e-3
    with pytest.raises(EngineError, match=r"train the network or multiply its logits by a number$"):  # not of its class
        calibrate(translate(quiet, SIZE))


class Idle(nn.Module):
    """A residual branch that training has left next to zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.branch, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, 4)
        for value in self.branch.parameters():
            value.data *= 1e-6

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        return self.fc((x + self.branch(x).relu()).mean((2, 3)))


def test_a_branch_next_to_zero_is_no_reason_to_refuse() -> None:
    assert calibrate(translate(Idle().eval(), SIZE)).finer == 2
