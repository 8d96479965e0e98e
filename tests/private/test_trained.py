"""The trained network that comes with the project, on real images: what it says of itself, and private inference."""

from pathlib import Path

import pytest
import torch

import deepshare
from deepshare.private.api import from_run, run, sample_images
from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from tests.data.unpacked import Unpack

RUN = Path(__file__).parents[2] / "results" / "cifar100-small" / "gates-1.25"


@pytest.fixture(scope="module")
def images(real_data: Unpack) -> torch.Tensor:
    """Test images of CIFAR-100."""
    return sample_images(RUN, 200, real_data("cifar-100-python"))[1]


def test_it_has_the_gates_that_it_claims() -> None:
    model = deepshare.load(RUN)
    assert deepshare.count_gates(model, (3, 32, 32)) == 1_536
    assert from_run(RUN)[0].comparisons == 1_536


def test_fixed_point_keeps_its_logits_and_classes(images: torch.Tensor) -> None:
    """Without the server's noise, on 200 real images."""
    program, _ = from_run(RUN)
    steps = schedule(program, calibrate(program))
    expected = program.evaluate(images)
    logits = decode(fixed.evaluate(steps, images), steps.steps[steps.output].scale)
    assert steps.number_format.finer == 2
    assert float((logits - expected).abs().median()) < 2.0**-11
    assert int((logits.argmax(1) == expected.argmax(1)).sum()) >= 199


@pytest.mark.usefixtures("parties_are_threads")
def test_privately_between_three_parties(images: torch.Tensor) -> None:
    program, _ = from_run(RUN)
    result = run(program, images[:8], "gateshare")
    difference = (result.logits - program.evaluate(images[:8])).abs()
    assert float(difference.median()) <= 2.0**-8
    assert result.cost.online.comparisons == 8 * 1_536
