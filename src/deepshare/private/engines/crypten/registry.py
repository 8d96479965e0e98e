"""The implementation of each operation of the IR, and the cost of a program, to the byte and the round."""

from collections import deque
from typing import Any

from deepshare.private.engines.crypten.activations import SecureGatedActivation, SecureSharedActivation
from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.operations import (
    BYTES,
    Local,
    SecureAffine,
    SecureLinear,
    SecureMultiply,
    SecureOperation,
    SecureResample,
)
from deepshare.private.ir.program import (
    Add,
    Affine,
    Concatenate,
    Convolution,
    GatedActivation,
    Input,
    Linear,
    Multiply,
    Operation,
    Permute,
    Program,
    Resample,
    Reshape,
    Select,
    SharedActivation,
    Subtract,
)
from deepshare.private.runtime.outcome import Part

IMPLEMENTATIONS: dict[type[Operation], type[SecureOperation[Any]]] = {
    Input: Local,
    Add: Local,
    Subtract: Local,
    Select: Local,
    Affine: SecureAffine,
    Multiply: SecureMultiply,
    Concatenate: Local,
    Reshape: Local,
    Permute: Local,
    Convolution: SecureLinear,
    Linear: SecureLinear,
    Resample: SecureResample,
    SharedActivation: SecureSharedActivation,
    GatedActivation: SecureGatedActivation,
}


def implement(program: Program, context: Context) -> deque[SecureOperation[Any]]:
    """All operations of a program, to be dropped one by one when they are done, with their correlated randomness."""
    kinds = (IMPLEMENTATIONS[type(operation)] for operation in program.operations)
    return deque(kind(context, program, number) for number, kind in enumerate(kinds))


def online(program: Program, images: int) -> dict[int, Part]:
    """The cost of each operation, without the time."""
    opened: set[int] = set()
    parts = {}
    for number, operation in enumerate(program.operations):
        kind, fresh = IMPLEMENTATIONS[type(operation)], 0
        if kind.opens_input:
            fresh = sum(program.operations[source].elements for source in set(operation.inputs) - opened)
            opened.update(operation.inputs)
        parts[number] = _times(kind.online(operation, fresh), images)
    logits = images * program.operations[-1].elements * BYTES
    parts[len(program.operations) - 1] += Part(server_bytes=logits, rounds=1)
    return parts


def offline(program: Program, images: int) -> Part:
    """The bytes of a dealer, or those that a trusted first party would have to send."""
    words = sum(IMPLEMENTATIONS[type(operation)].dealt(operation) for operation in program.operations)
    return Part(dealer_bytes=images * words * BYTES)


def _times(part: Part, images: int) -> Part:
    return Part(**{name: value if name == "rounds" else value * images for name, value in vars(part).items()})
