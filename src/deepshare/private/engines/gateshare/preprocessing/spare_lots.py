"""How many lots are dealt beyond one for each image, as the client cannot use all: by shapes and ranges, all public."""

import math

from deepshare.private.engines.gateshare.schedule import Schedule

FAILS = 2.0**-20
"""How seldom a pool may have too few."""


def unusable(schedule: Schedule) -> float:
    """The probability that a lot for one image has a share that cannot be cut back."""
    return -math.expm1(-schedule.lost)


def spares(schedule: Schedule, images: int) -> int:
    """The fewest lots more than images with which there are seldom too few: the mean loss and five deviations.

    The number of unusable lots before there are enough usable ones has a negative binomial distribution.
    """
    bad, chance, spare = unusable(schedule), -images * schedule.lost, 0
    enough = math.exp(chance)
    while 1 - enough > FAILS:
        chance += math.log(bad * (images + spare) / (spare + 1))
        spare += 1
        enough += math.exp(chance)
    return spare
