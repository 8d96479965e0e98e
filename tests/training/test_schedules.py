"""Learning rates by hand-worked numbers."""

import math
from itertools import pairwise

import pytest

from deepshare.training.loop import learning_rate
from deepshare.training.recipe.files import load_recipe
from deepshare.training.recipe.sections import Phase


def phase(schedule: str, **settings: object) -> Phase:
    return Phase.model_validate({"batch": 1, "weight_decay": 0.0, "schedule": schedule, **settings})


def test_linear_ends_at_three_quarters_of_the_phase() -> None:
    linear = phase("linear", epochs=100, lr=0.05, end_lr=5e-4)
    assert learning_rate(linear, 0, 10) == 0.05
    assert learning_rate(linear, 375, 10) == pytest.approx((0.05 + 5e-4) / 2)
    assert learning_rate(linear, 749, 10) > 5e-4
    assert learning_rate(linear, 750, 10) == learning_rate(linear, 999, 10) == 5e-4


def test_cosine() -> None:
    cosine = phase("cosine", epochs=4, lr=1.0, end_lr=0.2)
    assert learning_rate(cosine, 0, 3) == 1.0
    assert learning_rate(cosine, 6, 3) == pytest.approx(0.6)
    assert learning_rate(cosine, 4, 3) == pytest.approx(0.2 + 0.8 * 0.75)  # cos(60 degrees) = 1/2
    assert learning_rate(cosine, 11, 3) == pytest.approx(0.2 + 0.4 * (1 - math.cos(math.pi / 12)))


def test_poly() -> None:
    poly = phase("poly", epochs=2, lr=0.005, end_lr=1e-4)
    assert learning_rate(poly, 0, 5) == 0.005
    assert learning_rate(poly, 5, 5) == pytest.approx(1e-4 + 0.0049 * 0.5358867312681466)  # 0.5 ** 0.9


def test_steps_multiply_at_each_milestone() -> None:
    steps = phase("steps", epochs=200, lr=0.1, milestones=[0.3, 0.6, 0.8], factor=0.2)
    rates = [learning_rate(steps, epoch * 7, 7) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])


def test_none_stays() -> None:
    assert {learning_rate(phase("none", epochs=3, lr=1e-3), step, 2) for step in range(6)} == {1e-3}


def test_every_falling_schedule_falls_at_every_step_of_the_paper() -> None:
    tiny = load_recipe("tiny-imagenet-resnet18-30k")
    assert tiny.gelu
    assert tiny.gelu.schedule == "cosine"
    rates = [learning_rate(tiny.gelu, step, 4) for step in range(400)]
    assert all(before > after for before, after in pairwise(rates))
    assert rates[0] == 0.05
    assert 1e-5 < rates[-1] < 2e-5
