"""Linear layers and affine parameters in the ring."""

import hashlib
from collections.abc import Callable

from torch import Tensor

from deepshare.private.engines.gateshare.crypto.im2col import Geometry
from deepshare.private.engines.gateshare.crypto.limb_matmul import Weight, plain_weight, ring_weight
from deepshare.private.engines.gateshare.crypto.prg import mask
from deepshare.private.engines.gateshare.crypto.ring import encode
from deepshare.private.engines.gateshare.schedule import Diagonal, Gate, Layer, Product, Schedule
from deepshare.private.ir.program import Convolution, Linear, Program, SharedActivation, hidden_tensors

Multiply = Callable[[Tensor], Tensor]


def affine(program: Program, number: int) -> SharedActivation:
    """An activation with alpha and beta by its number."""
    operation = program.operations[number]
    if not isinstance(operation, SharedActivation):
        raise AssertionError(operation)
    return operation


def geometry(layer: Convolution | Linear) -> Geometry | None:
    """How kernels move; None for a fully connected layer."""
    if isinstance(layer, Linear):
        return None
    return Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)


def encoded_weight(schedule: Schedule, term: int) -> Tensor:
    """The weight of a linear layer as ring elements."""
    return encode(schedule.layer(term).weight, schedule.numbers.weight)


def plain(schedule: Schedule, term: int) -> Multiply:
    """A linear layer without its bias, ready to be multiplied."""
    return _ready(schedule.layer(term), encoded_weight(schedule, term), plain_weight)


def masked(schedule: Schedule, term: int, weight: Tensor) -> Multiply:
    """The same with any ring elements in place of its weight: its mask, or itself less that."""
    return _ready(schedule.layer(term), weight, ring_weight)


def _ready(layer: Layer, weight: Tensor, prepare: Callable[[Tensor, Geometry | None], Weight]) -> Multiply:
    return weight.mul if isinstance(layer, Diagonal) else prepare(weight, geometry(layer))


def encoded_bias(schedule: Schedule, step: Product) -> Tensor:
    """The biases of all terms, in the shape of one result."""
    bias = sum(_spread(schedule.layer(term), step) for term in step.terms)
    if not isinstance(bias, Tensor):
        raise AssertionError(step)
    return encode(bias, step.scale)


def _spread(layer: Layer, step: Product) -> Tensor:
    bias = layer.bias.double()
    return bias if isinstance(layer, Diagonal) else bias.view(-1, *[1] * (len(step.shape) - 1))


def encoded_affine(schedule: Schedule, step: Gate) -> tuple[Tensor, Tensor]:
    """Alpha and beta as ring elements, to be multiplied by neurons."""
    operation, bits = affine(schedule.program, step.operation), schedule.numbers.affine
    alpha, beta = (step.per_channel(encode(values, bits)) for values in (operation.alpha, operation.beta))
    return alpha, beta


def weight_mask(seed: bytes, schedule: Schedule, term: int) -> Tensor:
    """What hides a weight for a session: known to the dealer and to the server."""
    return mask(seed, schedule.layer(term).weight.shape, "weight", term)


def affine_masks(seed: bytes, step: Gate) -> tuple[Tensor, Tensor]:
    """What hides alpha and beta for a session."""
    shape = (step.neurons[0],)
    alpha, beta = (step.per_channel(mask(seed, shape, name, step.operation)) for name in ("alpha", "beta"))
    return alpha, beta


def session_shapes(schedule: Schedule) -> dict[int, list[tuple[int, ...]]]:
    """For each step what the server sends once, hidden by masks: weights, or alpha and beta."""
    shapes: dict[int, list[tuple[int, ...]]] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Product):
            shapes[number] = [tuple(schedule.layer(term).weight.shape) for term in step.terms]
        elif isinstance(step, Gate) and step.affine:
            shapes[number] = [(step.neurons[0],)] * 2
    return shapes


def digest(program: Program) -> bytes:
    """The server's numbers in 32 bytes; one set of masks belongs to one digest."""
    result = hashlib.blake2b(digest_size=32)
    for operation in program.operations:
        for name, tensor in hidden_tensors(operation).items():
            result.update(f"{operation.name} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            result.update(tensor.contiguous().numpy().data)
    return result.digest()
