"""Compilation: a program as steps in the ring, the same for every party.

A new operation is a function that adds its steps, beside their protocol, and a line of `LOWERINGS`.
"""

from collections.abc import Callable
from typing import Any

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols import gate, largest, linear, local, product, square
from deepshare.private.engines.gateshare.protocols.schedule import Schedule, ScheduleBuilder
from deepshare.private.ir.program import (
    Add,
    Affine,
    Concatenate,
    GatedActivation,
    Input,
    Multiply,
    Operation,
    Permute,
    Program,
    Resample,
    Reshape,
    Select,
    SharedActivation,
    Subtract,
    TopClasses,
)

LOWERINGS: dict[type[Operation], Callable[[ScheduleBuilder, int, Any], None]] = {
    Input: local.lower_input,
    SharedActivation: gate.lower_shared,
    GatedActivation: square.lower_gated_or_square,
    Add: local.lower_add,
    Subtract: local.lower_subtract,
    Multiply: product.lower_multiply,
    Affine: local.lower_affine,
    Select: local.lower_select,
    Concatenate: local.lower_concatenate,
    Reshape: local.lower_reshape,
    Permute: local.lower_permute,
    Resample: local.lower_resample,
    TopClasses: largest.lower_top,
}
"""How an operation becomes steps; linear layers and their sums aside."""

_MOST_UNSAFE = 2.0


def schedule(program: Program, number_format: NumberFormat, *, dealt: bool = True) -> Schedule:
    """Make the steps of a program that the engine has checked.

    Args:
        program: The program, or its outline.
        number_format: The number format.
        dealt: Whether a dealer makes lots; else the two parties do.

    Raises:
        EngineError: Its numbers are so large and so many that hardly any shares of them could be truncated, or its
            comparisons have fewer bits and no dealer.
    """
    if number_format.compared is not None and not dealt:
        raise EngineError("gateshare-2pc compares all bits: leave comparison bits out")
    builder, sums = ScheduleBuilder(program, number_format, dealt), linear.sums_of_layers(program)
    for number, operation in enumerate(program.operations):
        if number not in sums:
            LOWERINGS[type(operation)](builder, number, operation)
        elif sums[number]:
            linear.lower_sum(builder, number, sums[number])
    output = builder.result(len(program.operations) - 1)
    made = Schedule(program, number_format, tuple(builder.steps), output)
    if made.unsafe_shares > _MOST_UNSAFE:
        raise EngineError(
            f"of each image {made.unsafe_shares:.1f} shares would fall where they cannot be used: take smaller images, "
            "or a network with smaller numbers"
        )
    return made
