"""What is done to a network's activations: DeepShare and the methods it is compared with, behind one interface."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from deepshare.errors import RecipeError

if TYPE_CHECKING:
    from deepshare.methods.base import Method

_CLASS_OF = {
    "autorep": "AutoReP",
    "deepreduce": "DeepReDuce",
    "deepshare": "DeepShare",
    "delphi": "Delphi",
    "hybrenet": "HybReNet",
    "relu": "PlainReLU",
    "senet": "SENet",
    "snl": "SNL",
    "spatial": "Spatial",
    "trimmed": "Trimmed",
}


def names() -> tuple[str, ...]:
    """The names of all methods, as recipes have them."""
    return tuple(_CLASS_OF)


def get(name: str) -> "Callable[..., Method]":
    """The class of a method by its name.

    Raises:
        RecipeError: Nothing has that name.

    >>> get("snl")(input_size=(3, 32, 32), gates=6000).lasso
    1e-05
    """
    if name not in _CLASS_OF:
        raise RecipeError(f'no method is called "{name}": give one of {", ".join(_CLASS_OF)}')
    module = import_module(f"deepshare.methods.{name}")
    return cast("Callable[..., Method]", getattr(module, _CLASS_OF[name]))
