"""Products on their own: exact mod 2^64."""

import torch

from deepshare.private.engines.gateshare.protocols.product import ProductStep
from deepshare.private.engines.gateshare.protocols.square import OpeningStep
from tests.private.engines.gateshare.alone import clear_steps, run_steps


def test_products() -> None:
    first, second = (
        OpeningStep(number=number, operation=0, inputs=(0,), shape=(6,), scale=12, neurons=(6,), where=None)
        for number in (1, 2)
    )
    product = ProductStep(number=3, operation=0, inputs=(1, 2), shape=(6,), scale=24, factors=(first, second))
    x = torch.randint(-(2**63), 2**63 - 1, (3, 6))
    for values in (run_steps([first, second, product], x), clear_steps([first, second, product], x)):
        assert torch.equal(values[3], x * x)
