"""Numbers that an engine's fixed point cannot hold, refused before anything starts."""

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import Program, hidden_tensors


def check_numbers(program: Program, limit: float) -> None:
    """Refuse a program with numbers that are not below a limit; an outline has none.

    Raises:
        UnsupportedModelError: Names every layer.
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
    """Refuse images with numbers that are not below a limit.

    Raises:
        EngineError: Says the limit.
    """
    if not _below(images, limit):
        raise EngineError(
            f"the images hold a number that is not below {limit:.0f}, the range of fixed point: "
            "normalise them as the network was trained"
        )


def _below(values: Tensor, limit: float) -> bool:
    return bool((values.abs() < limit).all())
