"""The two protocols and their differences."""

from dataclasses import dataclass

FRACTION_BITS = 18
# With 18 of 64 bits after the point, products hold below 2^26: two numbers below 2^13 can be multiplied.
LIMIT = 2.0**13


@dataclass(frozen=True)
class Protocol:
    """One protocol of SPU.

    Attributes:
        kind: Its name there.
        absorbs: Whether products with the server's numbers are expensive, so that scales go into weights.
        caches: Whether a factor that is opened once can serve many products.
    """

    kind: str
    absorbs: bool
    caches: bool


CHEETAH = Protocol("CHEETAH", absorbs=True, caches=False)
SEMI2K = Protocol("SEMI2K", absorbs=False, caches=True)
