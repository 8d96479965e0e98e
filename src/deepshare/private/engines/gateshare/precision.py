"""Numbers that are too small for fixed point: what rounding or the server's noise would leave of the answer."""

import math
from collections.abc import Sequence

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import Operation, Program

# Results that reach no more units in the last place are suspicious, and the whole network is looked at.
_SUSPICIOUS = 64
# Two images tell how much rounding changes logits; a quarter of what these differ by between images is too much.
_IMAGES, _MOST_TAKEN = 2, 0.25


def called(operation: Operation) -> str:
    """Name of an operation in a message; the network itself has none."""
    return operation.name or f"the network's own {operation.kind}"


def check_precision(
    program: Program, images: Tensor, largest: Sequence[float], scores: Tensor, fraction: int, noise: int
) -> None:
    """Check that the answer does not vanish, at the cost of running two images where a layer's numbers are small.

    Args:
        program: With its weights.
        images: Those of the calibration.
        largest: The largest result of each operation.
        scores: Logits of the images.
        fraction: Fractional bits of activations.
        noise: Bits of the server's noise on logits.

    Raises:
        EngineError: Rounding or noise leaves nothing of it; the message names the layer.
    """
    span = float(scores.max() - scores.min())
    if not program.hides_scores and 0 < span < 2.0**noise / math.sqrt(3):
        several = scores.shape[1] > 1  # of one logit there is no class
        cures = "multiply its logits by a number" + (", or ask for the class (--answer class)" if several else "")
        raise EngineError(
            f"{called(program.operations[-1])}: the logits differ by {span:.1g} at the most, less than the noise that "
            f"hides rounding: train the network{',' if several else ' or'} {cures}"
        )
    found = list(zip(largest, program.operations, strict=True))[1:]
    value, smallest = min(
        (pair for pair in found if pair[0] > 0), key=lambda pair: pair[0], default=(1.0, program.operations[-1])
    )
    if value > _SUSPICIOUS * 2.0**-fraction:
        return
    last, logits = scores_of(program), scores[:_IMAGES]

    def cut(number: int, result: Tensor) -> None:
        nonlocal logits
        result.mul_(2.0**fraction).round_().mul_(2.0**-fraction)  # in place: later operations read it
        logits = result.clone() if number == last else logits

    program.evaluate(images[:_IMAGES].double().clone(), cut)
    between_images = float((scores.amax(0) - scores.amin(0)).max()) or span
    if not float((logits - scores[:_IMAGES]).abs().max()) <= _MOST_TAKEN * between_images:
        raise EngineError(
            f"{called(smallest)} reaches only {value:.1g}, and rounding to 2^-{fraction} changes the answer: "
            "multiply it by a larger number, and divide later"
        )


def scores_of(program: Program) -> int:
    """Number of the operation that has the logits."""
    last = len(program.operations) - 1
    return program.operations[last].inputs[0] if program.hides_scores else last
