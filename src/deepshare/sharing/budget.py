"""Division of a budget of gates among groups, in whole prototype channels."""

import math
import operator
from collections.abc import Sequence

from deepshare.errors import BudgetError


def parse(budget: int | str, neurons: int) -> int:
    """Parse a budget: a number of gates (6000, "6,000") or a percentage of all ReLUs ("1.2%").

    Raises:
        BudgetError: It is neither, or not between 1 and the number of ReLUs.
    """
    if isinstance(budget, str):
        text = budget.strip()
        try:
            if text.endswith("%"):
                gates = math.floor(float(text[:-1]) * neurons / 100 + 1e-9)
            else:
                gates = int(text.replace(",", "").replace("_", ""))
        except (ValueError, OverflowError):
            raise BudgetError(
                f"budget {budget!r} is not a number: give a count such as 6000 or a share such as 1.2%"
            ) from None
    elif hasattr(budget, "__index__") and not isinstance(budget, bool):
        gates = operator.index(budget)
    else:
        raise BudgetError(
            f"budget {budget!r} is not a whole number: give a count such as 6000 or a share such as '1.2%'"
        )
    if gates < 1:
        raise BudgetError(f"budget {budget} is too small: give at least 1")
    if gates > neurons:
        raise BudgetError(f"budget {gates:,} is above the {neurons:,} ReLUs of the network: give at most that")
    return gates


def split(units: Sequence[int], caps: Sequence[int], weights: Sequence[float], budget: int) -> list[int]:
    """Divide a budget among groups in proportion to their weights.

    Every group gets whole channels, at least one and at most its cap, and the total never exceeds the budget. What a
    capped group leaves goes to the others. What rounding leaves goes, channel by channel, to the group furthest below
    its share (or least above it), until the remainder is smaller than the cheapest free channel.

    Args:
        units: Gates per prototype channel of each group.
        caps: Channels of each group, the maximum of its prototypes.
        weights: Any non-negative numbers.
        budget: Number of gates.

    Returns:
        Prototype channels of each group.

    Raises:
        BudgetError: The budget is below one channel in every group, or a weight is negative or not a number.

    Example:
        >>> split(units=[1024, 256, 64, 16], caps=[64, 128, 256, 512], weights=[64, 32, 16, 8], budget=6000)
        [3, 6, 14, 31]
    """
    minimum = sum(units)
    if budget < minimum:
        raise BudgetError(
            f"budget {budget:,} is below the minimum of {minimum:,} gates, one prototype channel in each of "
            f"{len(units)} groups: give at least {minimum:,}"
        )
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise BudgetError("a weight is negative or not a number: give a finite weight of 0 or more for every site")
    shares = _shares(units, caps, weights, budget)
    counts = [max(1, math.floor(share + 1e-9)) for share in shares]
    left = budget - sum(unit * count for unit, count in zip(units, counts, strict=True))
    while free := [g for g, count in enumerate(counts) if count < caps[g] and units[g] <= left]:
        chosen = max(free, key=lambda g: (1 - counts[g] / shares[g], -units[g], -g))
        counts[chosen] += 1
        left -= units[chosen]
    return counts


def _shares(units: Sequence[int], caps: Sequence[int], weights: Sequence[float], budget: int) -> list[float]:
    """Channels of each group before rounding: proportional, clipped to [1, cap], with the rest divided again.

    Clipping leaves a surplus or a deficit. Fixing the groups on the larger side first is water-filling with two bounds,
    which ends after at most one pass per group.
    """
    shares: dict[int, float] = {}
    while len(shares) < len(units):
        open_groups = [g for g in range(len(units)) if g not in shares]
        left = budget - sum(units[g] * share for g, share in shares.items())
        total = sum(weights[g] for g in open_groups)
        wanted = {g: left * weights[g] / total / units[g] if total else 1.0 for g in open_groups}
        clipped = {g: min(max(want, 1.0), float(caps[g])) for g, want in wanted.items()}
        excess = sum((clipped[g] - wanted[g]) * units[g] for g in open_groups)
        fixed = {
            g: clipped[g]
            for g in open_groups
            if (excess > 0 and clipped[g] > wanted[g]) or (excess < 0 and clipped[g] < wanted[g])
        }
        shares |= fixed or clipped
    return [shares[g] for g in range(len(units))]
