"""The lowering of each operation of the IR into kernels, and the cost of a program.

Costs on SEMI2K are exact. CHEETAH compresses its ciphertexts, so their sizes vary by a few bytes in a thousand. After
some 125,000 comparisons a party sends another quarter of a megabyte for more oblivious transfers, which is left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deepshare.private.engines.spu.gated import lower_gated
from deepshare.private.engines.spu.kernel import CostContext, Kernel
from deepshare.private.engines.spu.linear import Value, layer
from deepshare.private.engines.spu.local import (
    lower_add,
    lower_concatenate,
    lower_input,
    lower_permute,
    lower_reshape,
    lower_select,
    lower_subtract,
)
from deepshare.private.engines.spu.lowering import Lowering
from deepshare.private.engines.spu.products import lower_affine, lower_multiply, lower_resample
from deepshare.private.engines.spu.protocol import Protocol
from deepshare.private.engines.spu.shared import lower_shared
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
    Weighted,
)
from deepshare.private.runtime.outcome import Part

# The meta data of a share beside its numbers.
_LABEL = 40


def lower_linear(lowering: Lowering, number: int, operation: Weighted) -> Value:
    """A product, which may wait for a sum."""
    return lowering.settled(number, layer(operation, number, lowering.held(operation.inputs[0])))


LOWERINGS: dict[type[Operation], Callable[[Lowering, int, Any], Value]] = {
    Input: lower_input,
    Add: lower_add,
    Subtract: lower_subtract,
    Select: lower_select,
    Affine: lower_affine,
    Multiply: lower_multiply,
    Concatenate: lower_concatenate,
    Reshape: lower_reshape,
    Permute: lower_permute,
    Convolution: lower_linear,
    Linear: lower_linear,
    Resample: lower_resample,
    SharedActivation: lower_shared,
    GatedActivation: lower_gated,
}


def lower(program: Program, absorbs: bool, count: int) -> tuple[Kernel, ...]:
    """The kernels of a program, in order; the last one's output is the result.

    Args:
        program: Whole or an outline: hidden tensors of an outline stay without numbers.
        absorbs: Whether scales go into the products after them where that pays, and sums of products become one, as
            is cheapest on CHEETAH; otherwise each operation is computed where it stands.
        count: Number of images at once.
    """
    lowering = Lowering(program, absorbs, count)
    for number, operation in enumerate(program.operations):
        lowering.values[number] = LOWERINGS[type(operation)](lowering, number, operation)
    lowering.plain(len(program.operations) - 1)
    return tuple(lowering.kernels)


def online(program: Program, protocol: Protocol, count: int) -> Mapping[int, Part]:
    """The cost of each operation; those without a kernel of their own are a part of another's."""
    kernels = lower(program, protocol.absorbs, count)
    context = CostContext(count, {"images": program.input_size} | {kernel.output: kernel.shape for kernel in kernels})
    layers: dict[int, Part] = {}
    for kernel in kernels:
        part = kernel.semi2k(context) if protocol.caches else kernel.cheetah(context)
        part = replace(part, comparisons=kernel.comparisons * count, products=kernel.products * count)
        layers[kernel.number] = layers.get(kernel.number, Part()) + part
    last = kernels[-1]
    layers[last.number] += Part(server_bytes=8 * last.elements * count + _LABEL, rounds=1)
    return layers
