"""The same steps in the clear: what a private inference computes, to the last bit if the client's shares are known.

Cutting a number back rounds down or up, as the shares happen to fall. Given the client's shares the result is that of
the private inference bit for bit; without them every number is rounded down, and differs from the private one by at
most one unit, 2^-16, at each cut, and whatever later layers make of that.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from deepshare.private.engines.gateshare import weights
from deepshare.private.engines.gateshare.crypto.ring import encode, truncate_client, truncate_server
from deepshare.private.engines.gateshare.schedule import (
    Gate,
    Opening,
    Product,
    Schedule,
    Shift,
    Square,
    Step,
    Take,
    alone,
)


def evaluate(
    schedule: Schedule,
    images: Tensor,
    shares: Mapping[int, Tensor] | None = None,
    see: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Run a schedule on a batch of images.

    Args:
        schedule: Of a program with its hidden numbers.
        images: (N, C, H, W).
        shares: For each Shift the client's share of what is cut back.
        see: Called with the number and the result of each step.

    Returns:
        Ring elements at the scale of the output, before the server's noise.
    """
    gates: dict[int, Tensor] = {}

    def do(number: int, step: Step, inputs: list[Tensor]) -> Tensor:
        match step:
            case Take():
                result = encode(images, step.scale)
            case Product():
                result = _product(schedule, step, inputs)
            case Shift():
                result = _cut(inputs[0], step.by, None if shares is None else shares[number])
            case Opening():
                result = inputs[0]
            case Square():
                result = step.opening.picked(inputs[0]).square()
            case Gate():
                result = _gate(schedule, number, step, inputs[0], gates)
            case _:
                result = alone(step, inputs)
        if see is not None:
            see(number, result)
        return result

    return schedule.run(do)


def _product(schedule: Schedule, step: Product, inputs: list[Tensor]) -> Tensor:
    total = weights.encoded_bias(schedule, step)
    for term, x in zip(step.terms, inputs, strict=True):
        total = total + weights.plain(schedule, term)(x)
    return total


def _cut(x: Tensor, by: int, share: Tensor | None) -> Tensor:
    return x >> by if share is None else truncate_client(share, by) + truncate_server(x - share, by)


def _gate(schedule: Schedule, number: int, step: Gate, x: Tensor, gates: dict[int, Tensor]) -> Tensor:
    neurons = step.picked(x)
    if step.leads:
        gates[number] = (step.compared(neurons) >= 0).long().view(-1, *step.gates)
    gated = neurons * step.each(gates[step.leader])
    if step.affine:
        alpha, beta = weights.encoded_affine(schedule, step)
        gated = alpha * gated + beta * neurons
    return step.placed(x, gated)
