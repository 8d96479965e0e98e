"""Checks, before anything starts, that numbers are within the range of an engine's fixed point."""

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import Program, hidden_tensors


def check_numbers(program: Program, limit: float) -> None:
    """Check that all numbers of a program are below a limit; an outline has none.

    Raises:
        UnsupportedModelError: Some are not; names every such layer.
    """
    problems = [
        f"{operation.name}: its {name} has a number that is not below {limit:.0f}, the range of fixed point: "
        "train with more weight decay"
        for operation in program.operations
        for name, value in hidden_tensors(operation).items()
        if not value.is_meta and not _below(value, limit)
    ]
    if problems:
        raise UnsupportedModelError(problems)


def check_images_below(images: Tensor, limit: float) -> None:
    """Check that all numbers of images are below a limit.

    Raises:
        EngineError: Some are not.
    """
    if not _below(images, limit):
        raise EngineError(
            f"the images hold a number that is not below {limit:.0f}, the range of fixed point: "
            "normalise them as the network was trained"
        )


def _below(values: Tensor, limit: float) -> bool:
    return bool((values.abs() < limit).all())
