"""Spare lots, dealt beyond one for each image because the client cannot use all; from public shapes and ranges."""

import math

from deepshare.private.engines.gateshare.protocols.schedule import Schedule

FAILS = 2.0**-20
"""Probability with which a pool may have too few."""


def unusable(schedule: Schedule) -> float:
    """Probability that a lot for one image has a share that cannot be truncated safely."""
    return -math.expm1(-schedule.unsafe_shares)


def spare_lots(schedule: Schedule, images: int) -> int:
    """The fewest lots more than images with which there are seldom too few: about the mean loss and five deviations.

    The number of unusable lots before there are enough usable ones has a negative binomial distribution.
    """
    bad, chance, spare = unusable(schedule), -images * schedule.unsafe_shares, 0
    enough = math.exp(chance)
    while 1 - enough > FAILS:
        chance += math.log(bad * (images + spare) / (spare + 1))
        spare += 1
        enough += math.exp(chance)
    return spare
