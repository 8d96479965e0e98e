"""Compilation: a program as steps in the ring, the same for every party.

A new operation is a function that adds its steps, beside their protocol, and a line of `LOWERINGS`.
"""

from collections.abc import Callable
from typing import Any

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.protocols import gate, input_output, linear, local, square
from deepshare.private.engines.gateshare.schedule import Schedule, ScheduleBuilder
from deepshare.private.ir.program import (
    Add,
    Concatenate,
    GatedActivation,
    Input,
    Operation,
    Program,
    Resample,
    Reshape,
    SharedActivation,
)

LOWERINGS: dict[type[Operation], Callable[[ScheduleBuilder, int, Any], None]] = {
    Input: input_output.lower_input,
    SharedActivation: gate.lower_shared,
    GatedActivation: square.lower_gated_or_square,
    Add: local.lower_add,
    Concatenate: local.lower_concatenate,
    Reshape: local.lower_reshape,
    Resample: local.lower_resample,
}
"""How an operation becomes steps; linear layers and their sums aside."""

_MOST_UNSAFE = 2.0


def schedule(program: Program, number_format: NumberFormat) -> Schedule:
    """Make the steps of a program that `support.check` has accepted.

    Raises:
        EngineError: Its numbers are so large and so many that hardly any shares of them could be truncated.
    """
    builder, sums = ScheduleBuilder(program, number_format), linear.sums_of_layers(program)
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
