"""DeepShare and the methods it is compared with: one file each, behind one interface.

A file of this room registers its method, and nothing else has to know it:

    @register("autorep")
    @dataclass
    class AutoReP(Method):
        ...

The base class says what a method may declare (`deepshare.methods.base`); docs/guides/add-a-method.md adds one from an
empty file.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from deepshare.errors import RecipeError
from deepshare.methods.base import Method

M = TypeVar("M", bound=type[Method])

_REGISTERED: dict[str, tuple[int, type[Method]]] = {}
LAST = 100


def register(name: str, *, order: int = LAST) -> Callable[[M], M]:
    """Make a method known by a name.

    Args:
        name: Its name in recipes, and that of its section if it has one.
        order: Its place wherever methods are listed; those with the same place are sorted by name. The first is the
            method of recipes that name none.
    """

    def known(method: M) -> M:
        method.name = name
        _REGISTERED[name] = order, method
        return method

    return known


def names(where: Callable[[type[Method]], bool] | None = None) -> tuple[str, ...]:
    """The names of all methods, as recipes have them, or of those that fulfil a condition."""
    _import_all()
    ordered = sorted(_REGISTERED, key=lambda name: (_REGISTERED[name][0], name))
    return tuple(name for name in ordered if where is None or where(_REGISTERED[name][1]))


def get(name: str) -> type[Method]:
    """The class of a method by its name.

    Raises:
        RecipeError: No method has that name.

    >>> get("snl").phases
    ('search', 'finetune')
    """
    if name not in names():
        raise RecipeError(f'no method is called "{name}": give one of {", ".join(sorted(names()))}')
    return _REGISTERED[name][1]


def _import_all() -> None:
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
