"""Reference: the same steps without shares, equal to a private inference to the last bit if its rounding is known.

A truncation rounds down or up, as the shares happen to fall. Given the client's shares the result is that of the
private inference bit for bit. Without them every number is rounded down: it differs from the private one by at most one
unit in the last place at each truncation, and whatever later layers make of that. Without a dealer a product under
encryption is off by a unit now and then; with the differences (`products`) the result is bit for bit the same again.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.step import InTheClear, ProtocolStep


def evaluate(
    schedule: Schedule,
    images: Tensor,
    shares: Mapping[int, Tensor] | None = None,
    see: Callable[[int, Tensor], None] | None = None,
    thresholds: Mapping[int, Tensor] | None = None,
    products: Mapping[int, Tensor] | None = None,
) -> Tensor:
    """Run a schedule on a batch of images.

    Args:
        schedule: Of a program with its weights.
        images: (N, C, H, W).
        shares: For each truncation the client's share of what is truncated.
        see: Called with the number and the result of each step.
        thresholds: For activations whose comparisons drop bits, what decides gates near zero; without, these are exact.
        products: For linear steps without a dealer, what their products are off by; without, nothing.

    Returns:
        Ring elements at the scale of the output, before the server's noise.
    """
    at = InTheClear(images=images, shares=shares, thresholds=thresholds or {}, products=products or {})

    def do(step: ProtocolStep, inputs: list[Tensor]) -> Tensor:
        result = step.in_the_clear(inputs, at)
        if see is not None:
            see(step.number, result)
        return result

    return schedule.run(do)
