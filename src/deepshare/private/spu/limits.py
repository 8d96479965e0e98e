"""What the engine refuses before anything starts."""

from collections.abc import Mapping

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.program import Program, hidden_tensors

# With 18 bits after the point in 64, products hold below 2^26: two numbers below 2^13 can be multiplied.
LIMIT = 2.0**13


def check_options(name: str, options: Mapping[str, str]) -> None:
    """Refuse options: there are none.

    Raises:
        EngineError: Names them.
    """
    if options:
        raise EngineError(f"engine {name} has no option {', '.join(sorted(options))}: leave it out")


def check_numbers(program: Program) -> None:
    """Refuse a program with numbers beyond the range of fixed point; an outline has none.

    Raises:
        UnsupportedModelError: Names every layer.
    """
    problems = [
        f"{operation.name}: its {name} has a number that is not below {LIMIT:.0f}, the range of fixed point: "
        "train with more weight decay"
        for operation in program.operations
        for name, value in hidden_tensors(operation).items()
        if not value.is_meta and not in_range(value)
    ]
    if problems:
        raise UnsupportedModelError(problems)


def check_images(images: Tensor) -> None:
    """Refuse images beyond the range of fixed point.

    Raises:
        EngineError: Says the range.
    """
    if not in_range(images):
        raise EngineError(
            f"the images hold a number that is not below {LIMIT:.0f}, the range of fixed point: "
            "normalise them as the network was trained"
        )


def in_range(values: Tensor) -> bool:
    """Whether all values are numbers that can be encoded."""
    return bool((values.abs() < LIMIT).all())
