"""What the engine refuses before anything starts."""

from collections.abc import Mapping

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.crypten.fixed import LIMIT
from deepshare.private.program import Program, hidden_tensors

PROVIDERS = ("tfp", "ttp")


def provider(options: Mapping[str, str]) -> str:
    """Who deals the random numbers: tfp, the trusted first party, or ttp, a trusted third party.

    Raises:
        EngineError: Another option or value.
    """
    unknown = set(options) - {"provider"}
    if unknown:
        raise EngineError(f"engine crypten has no option {', '.join(sorted(unknown))}: its only one is provider")
    chosen = options.get("provider", PROVIDERS[0])
    if chosen not in PROVIDERS:
        raise EngineError(f"engine crypten has no provider {chosen}: take one of {', '.join(PROVIDERS)}")
    return chosen


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
