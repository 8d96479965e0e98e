"""Squares on their own: exact mod 2^64, of all numbers of a tensor or of some."""

import pytest
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from tests.private.engines.gateshare.alone import clear_steps, run_steps


@pytest.mark.parametrize("where", [None, torch.tensor([0, 3, 4])])
def test_squares(where: Tensor | None) -> None:
    neurons = (6,) if where is None else (len(where),)
    opening = OpeningStep(number=1, operation=0, inputs=(0,), shape=(6,), scale=12, neurons=neurons, where=where)
    square = SquareStep(number=2, operation=0, inputs=(1,), shape=neurons, scale=24, opening=opening, rounds=1)
    x = torch.randint(-(2**63), 2**63 - 1, (3, 6))
    x[0] = torch.tensor([0, 1, -1, 2**31, -(2**31), 2**62])
    for values in (run_steps([opening, square], x), clear_steps([opening, square], x)):
        assert torch.equal(values[1], x)
        assert torch.equal(values[2], (x if where is None else x[:, where]).square())
