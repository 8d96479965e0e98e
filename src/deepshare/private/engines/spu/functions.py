"""Each step as a function for JAX, which the engine compiles and never runs itself.

A function takes the variables that its step reads, then the hidden tensors by name, and gives the variable that it
writes. The batch is first.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deepshare.private.engines.spu.steps import (
    Gated,
    Gates,
    Join,
    Largest,
    Parts,
    Product,
    Resampled,
    Reshaped,
    Scale,
    Select,
    Share,
    Step,
    Sum,
    Window,
    sums_only,
)

# Around the map of a max-pool: below every value, and far enough within the range of fixed point to be compared.
LOWEST = -(2.0**20)


Keep = Callable[[Array], Array]


def function(step: Step, keep: Keep) -> Callable[..., Array]:
    """The function of a step.

    Args:
        step: What to compute.
        keep: Marks a factor of two products, which has to be opened only once.
    """

    def run(*variables: Array) -> Array:
        hidden = dict(zip(step.hidden, variables[len(step.inputs) :], strict=True))
        return apply(step, variables[: len(step.inputs)], hidden, keep)

    return run


def apply(step: Step, inputs: Sequence[Array], hidden: dict[str, Array], keep: Keep = lambda x: x) -> Array:
    """Compute a step."""
    match step:
        case Product():
            return _product(step, inputs, hidden)
        case Gates():
            return _gates(step, inputs[0])
        case Select(pi=pi):
            x, gate = inputs
            return jnp.concatenate([jnp.where(gate[:, np.array(pi)], x, 0.0), x], 1)
        case Scale():
            return _scale(step, *inputs, **hidden)
        case Parts():
            return _parts(step, inputs[0], **hidden)
        case Gated():
            return _gated(step, inputs[0], hidden, keep)
        case Resampled():
            return _resampled(step, inputs[0])
        case Largest(window=window, shape=shape):
            return _largest(jnp.stack(_patches(inputs[0], window, shape, LOWEST)))
        case Sum():
            return inputs[0] + inputs[1]
        case Join():
            return jnp.concatenate(inputs, 1)
        case Reshaped(shape=shape) | Share(shape=shape):
            return inputs[0].reshape(-1, *shape)
    raise AssertionError(step)


def _product(step: Product, inputs: Sequence[Array], hidden: dict[str, Array]) -> Array:
    columns = [_columns(x, window, step.shape) for x, window in zip(inputs, step.windows, strict=False)]
    y = jnp.concatenate(columns, 1) @ hidden["weight"]
    if "bias" in hidden:
        y = y + hidden["bias"]
    y = jnp.moveaxis(y.reshape(len(inputs[0]), *step.shape[1:], step.shape[0]), -1, 1)
    for addend in inputs[len(step.windows) :]:
        y = y + addend
    return y


def _columns(x: Array, window: Window, shape: tuple[int, ...]) -> Array:
    """A row for each place of the window, with the values at its positions, channel by channel at each."""
    if x.ndim == 2:
        return x
    patches = jnp.stack(_patches(x, window, shape, 0.0), 1)
    return patches.transpose(0, 3, 4, 1, 2).reshape(-1, patches.shape[1] * x.shape[1])


def _patches(x: Array, window: Window, shape: tuple[int, ...], outside: float) -> list[Array]:
    """For each position of the window, (N, C, H, W) of what it sees at each of its places."""
    (top, left), (down, right) = window.padding, window.stride
    if top or left:
        x = jnp.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=outside)
    patches = []
    for row in range(0, window.kernel[0] * window.dilation[0], window.dilation[0]):
        for column in range(0, window.kernel[1] * window.dilation[1], window.dilation[1]):
            ends = (row + (shape[1] - 1) * down + 1, column + (shape[2] - 1) * right + 1)
            patches.append(lax.slice(x, (0, 0, row, column), (*x.shape[:2], *ends), (1, 1, down, right)))
    return patches


def _gates(step: Gates, x: Array) -> Array:
    gates = x[:, : step.shape[0]] >= 0
    if not step.columns:
        return gates
    rows = jnp.moveaxis(gates, 1, -1).reshape(-1, step.shape[0])
    return jnp.concatenate([rows] * (step.columns // step.shape[0]), 1)


def _scale(step: Scale, x: Array, gate: Array, spread: Array, beta: Array) -> Array:
    coefficient = (gate.astype(jnp.float32) @ spread + beta).reshape(len(x), *step.shape[1:], step.shape[0])
    return x * jnp.moveaxis(coefficient, -1, 1)


def _largest(values: Array) -> Array:
    """The largest along the first axis, all pairs at once."""
    while len(values) > 1:
        half = len(values) // 2
        values = jnp.concatenate([jnp.maximum(values[:half], values[half : 2 * half]), values[2 * half :]])
    return values[0]


def _take(x: Array, positions: Any) -> Array:
    """Positions of each image; one flat gather, because scattered positions one by one would take seconds."""
    places = np.asarray(positions)
    if len(places) == prod(x.shape[1:]) and bool((places == np.arange(len(places))).all()):
        return x.reshape(len(x), -1)
    count, size = len(x), prod(x.shape[1:])
    return x.reshape(-1)[(np.arange(count)[:, None] * size + places).reshape(-1)].reshape(count, -1)


def _place(step: Gated, gated: Array, others: Array) -> Array:
    """Values at the positions with a gate and those without, in the order of the map."""
    order = np.argsort(np.concatenate([step.gates.numpy(), step.others.numpy()]))
    return _take(jnp.concatenate([gated, others], 1), order)


def _relu(step: Gated, x: Array) -> Array:
    gated = _take(x, step.gates)
    return jnp.where(gated >= 0, gated, 0.0) if len(step.gates) else gated


def _gated(step: Gated, x: Array, hidden: dict[str, Array], keep: Keep) -> Array:
    gated, others = _relu(step, x), _take(x, step.others)
    if hidden:
        others = keep(others)
        others = (hidden["square"] * others + hidden["linear"]) * others + hidden["constant"]
    return _place(step, gated, others).reshape(x.shape)


def _parts(step: Parts, x: Array, constant: Array) -> Array:
    gated, others = _relu(step, x), _take(x, step.others)
    parts = (_place(step, gated, 0 * others), _place(step, 0 * gated, others * others), _place(step, 0 * gated, others))
    first, *rest = (part.reshape(x.shape) for part in parts)
    return jnp.concatenate([first + constant, *rest], 1)


def _resampled(step: Resampled, x: Array) -> Array:
    x = _along_last(x, step.columns.numpy())
    x = jnp.swapaxes(_along_last(jnp.swapaxes(x, 2, 3), step.rows.numpy()), 2, 3)
    return x if step.scale == 1 else x * step.scale


def _along_last(x: Array, matrix: np.ndarray[Any, Any]) -> Array:
    if sums_only(matrix):
        # A product with constants would be truncated, even where they are zeros and ones.
        spans = [np.flatnonzero(row) for row in matrix]
        return jnp.stack([x[..., span[0] : span[-1] + 1].sum(-1) for span in spans], -1)
    return (x.reshape(-1, x.shape[-1]) @ jnp.asarray(matrix.T, jnp.float32)).reshape(*x.shape[:-1], -1)
