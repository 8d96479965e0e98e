"""Spare lots: as few as make a pool good for its images, whatever the client has to discard."""

import math

import pytest
import torch
from torch import nn

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.fixedpoint import LEAST_BITS, NumberFormat
from deepshare.private.engines.gateshare.preprocessing.spare_lots import FAILS, spare_lots, unusable
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import SIZE, Trial


def network() -> Program:
    torch.manual_seed(51)
    return translate(nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 36, 4)), SIZE)


def wide(program: Program, bits: int) -> NumberFormat:
    """Numbers so large that many shares fall into their windows."""
    return NumberFormat((bits,) * len(program.operations), 8.0)


def too_few(lots: int, spare: int, bad: float) -> float:
    """The probability that more lots than the spare ones are unusable."""
    return math.fsum(
        math.comb(lots, n) * bad**n * (1 - bad) ** (lots - n) for n in range(spare + 1, min(lots, spare + 200) + 1)
    )


@pytest.mark.parametrize("bits", [LEAST_BITS, 40, 44])
@pytest.mark.parametrize("images", [1, 2, 100, 700])
def test_fewer_would_fail_more_often_than_one_pool_in_a_million(bits: int, images: int) -> None:
    program = network()
    steps = schedule(program, wide(program, bits))
    spare, bad = spare_lots(steps, images), unusable(steps)
    assert too_few(images + spare, spare, bad) <= FAILS < 1e-6
    assert spare == 0 or too_few(images + spare - 1, spare - 1, bad) > FAILS


def test_none_where_no_share_is_truncated() -> None:
    program = translate(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), SIZE)
    steps = schedule(program, NumberFormat.usual(program))
    assert steps.unsafe_shares == 0 and spare_lots(steps, 1000) == 0


def test_as_many_lots_are_discarded_as_were_expected() -> None:
    program = network()
    trial = Trial(program, wide(program, 44))
    bad = unusable(trial.schedule)
    assert 0.05 < bad < 0.5
    count = 1000
    found = int(trial.client.preprocess(trial.dealer.deal(count)[1], fresh_seed()).unsafe.sum())
    assert abs(found - count * bad) < 6 * math.sqrt(count * bad * (1 - bad))


def test_only_public_numbers_count() -> None:
    """The same for an outline, and for other weights."""
    program = network()
    numbers = wide(program, 40)
    assert spare_lots(schedule(program.outline(), numbers), 100) == spare_lots(schedule(program, numbers), 100)
