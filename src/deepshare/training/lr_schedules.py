"""Learning rates as pure functions of the step, so that a resumed run needs no memory of them."""

import math

from deepshare.training.recipe.schema import Phase

LINEAR_SHARE = 0.75  # the paper's linear schedule ends at 75% of the phase
POLY_POWER = 0.9


def rate(phase: Phase, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step of a phase, counted from 0.

    `linear` falls to the end rate at 75% of the phase and stays there; `cosine` and `poly` reach it with the phase;
    `steps` multiplies by the factor at each milestone; `none` stays at the start rate.

    >>> phase = Phase(epochs=4, batch=8, lr=1.0, end_lr=0.0, schedule="linear", weight_decay=0.0)
    >>> [rate(phase, step, steps_per_epoch=10) for step in (0, 15, 30, 39)]
    [1.0, 0.5, 0.0, 0.0]
    """
    passed = step / (steps_per_epoch * phase.epochs)
    end = phase.end_lr or 0.0
    match phase.schedule:
        case "none":
            return phase.lr
        case "linear":
            left = max(0.0, 1 - passed / LINEAR_SHARE)
        case "cosine":
            left = (1 + math.cos(math.pi * passed)) / 2
        case "poly":
            left = (1 - passed) ** POLY_POWER
        case "steps":
            return phase.lr * (phase.factor or 1.0) ** sum(passed >= milestone for milestone in phase.milestones)
    return end + (phase.lr - end) * left
