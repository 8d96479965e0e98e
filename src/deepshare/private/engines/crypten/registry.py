"""The implementation of each operation of the IR."""

from collections import deque
from typing import Any

from deepshare.private.engines.crypten.activations import SecureGatedActivation, SecureSharedActivation
from deepshare.private.engines.crypten.context import Context
from deepshare.private.engines.crypten.operations import (
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
