"""Private inference in one call."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from deepshare.errors import EngineError
from deepshare.private.cost import Result, total
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, check_installed, find_engine
from deepshare.private.runtime.local import Machine, run_here

# All engines hold values below this, with room for the sums that lead to them.
LARGEST = 2.0**18


def infer(
    model: nn.Module, images: Tensor, engine: str = "crypten", options: Mapping[str, str] | None = None
) -> Result:
    """Run a network on images privately, between processes on this machine.

    The server's process alone has the weights, the client's alone the images and the logits.

    Args:
        model: A trained network: plain, with shared gates or with masks.
        images: (N, C, H, W), normalised as the network takes them.
        engine: One of `engine_names()`.
        options: Options of the engine, such as {"provider": "ttp"} of crypten.

    Returns:
        The client's logits and their cost, with the largest error against the plain network.

    Raises:
        UnsupportedModelError: The network does something that the engine cannot do.
        EngineError: The engine is not installed, or a party failed.
    """
    chosen = find_engine(engine)
    check_installed(chosen)
    check_images(images, None)
    return run(translate(model, tuple(images.shape[1:])), images, engine, options)


def run(
    program: Program,
    images: Tensor,
    engine: str,
    options: Mapping[str, str] | None = None,
    machines: Mapping[Role, Machine] | None = None,
) -> Result:
    """Run a program as `infer` runs a network; `machines` puts parties elsewhere."""
    chosen, options = find_engine(engine), options or {}
    check_installed(chosen)
    check_images(images, program)
    chosen.check(program, options)
    expected = program.evaluate(images, see=lambda number, value: _check_range(program, number, value))
    outcomes = run_here(chosen, program, images, options, machines)
    logits = outcomes["client"].logits
    if logits is None:
        raise EngineError("the client got no logits")
    cost = total(chosen.name, program, len(images), list(outcomes.values()))
    error = float((logits.double() - expected).abs().max())
    return Result(logits, replace(cost, error=error))


def check_images(images: Tensor, program: Program | None) -> None:
    """Check that a tensor is a batch of images for a program.

    Raises:
        EngineError: It is not; the message says what the program takes.
    """
    wanted = "(N, C, H, W)" if program is None else f"(N, {', '.join(map(str, program.input_size))})"
    fits = images.dim() == 4 if program is None else tuple(images.shape[1:]) == program.input_size
    if not fits or not images.is_floating_point() or not len(images):
        raise EngineError(f"images of shape {tuple(images.shape)} and {images.dtype}: give floats of shape {wanted}")
    if not bool(torch.isfinite(images).all()):
        raise EngineError("the images hold numbers that are not finite: normalise them as the network was trained")


def _check_range(program: Program, number: int, value: Tensor) -> None:
    largest = float(value.abs().max())
    if not largest < LARGEST:
        name = program.operations[number].name
        raise EngineError(
            f"{name} reaches {largest:.2g} on these images, beyond the range of fixed point, {LARGEST:.0f}: "
            "train it with more weight decay, or normalise the images as it was trained"
        )
