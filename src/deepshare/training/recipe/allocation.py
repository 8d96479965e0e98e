"""The interface of an allocation, one way to divide a budget among sites, and the registry.

A file of `deepshare.training.allocation` registers its own, and nothing else has to know it:

    @register("pruning")
    class Pruning(Allocation):
        ...

The files are imported when a recipe is first checked. What trains is imported by them only when they train.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from deepshare.methods.base import LAST, PhaseView, RecipeView, Registry
from deepshare.sharing.sites import Sites

Weights = Mapping[str, float] | None  # for `plan`, by site; None is the same share of channels everywhere


@dataclass(frozen=True)
class Allocation(ABC):
    """One way to divide a budget, which is read off the sites of a network.

    Attributes:
        value: The value of `budget.allocate`: the name, or that of a file.
        needs_plain: Whether it starts from the trained plain network.
        needs_pilot: Whether it is measured by [pilot].
        continues_pilot: Whether the result starts from the weights of its pilot.
    """

    value: str

    needs_plain: ClassVar[bool] = False
    needs_pilot: ClassVar[bool] = False
    continues_pilot: ClassVar[bool] = False

    def problem(self, recipe: RecipeView) -> str | None:
        """Return a conflict with the rest of a recipe, in one sentence; None if there is none."""
        return None

    def phases(self, recipe: RecipeView) -> Mapping[str, PhaseView]:
        """The phases that it trains for beside those of the recipe."""
        return {}

    def check(self, sites: Sites) -> None:  # noqa: B027, most have nothing to refuse
        """Refuse an unsuitable network before anything is trained."""

    @abstractmethod
    def read(self, sites: Sites) -> Weights:
        """Return the weights of the sites, or refuse if they need training."""


A = TypeVar("A", bound=type[Allocation])
_ALLOCATIONS: Registry[Allocation] = Registry("deepshare.training.allocation")


def register(name: str = "", *, order: int = LAST) -> Callable[[A], A]:
    """Make an allocation known by a name.

    Args:
        name: Its name in recipes; the one without a name takes every other value, as the name of a file.
        order: Its place wherever allocations are listed; those with the same place are sorted by name.
    """

    def known(allocation: A) -> A:
        _ALLOCATIONS.add(name, allocation, order)
        return allocation

    return known


@register("uniform", order=6)
class Uniform(Allocation):
    """The same share of channels everywhere; the default."""

    def read(self, sites: Sites) -> Weights:
        """Return None, the same share everywhere."""
        return None


def names(where: Callable[[type[Allocation]], bool] | None = None) -> tuple[str, ...]:
    """The names of all allocations, as recipes have them, or of those that fulfil a condition."""
    return _ALLOCATIONS.names(where)


def find(value: str) -> Allocation:
    """The allocation of a value of `budget.allocate`.

    >>> find("snl").needs_plain, find("counts.json").needs_plain
    (True, False)
    """
    return _ALLOCATIONS[value if value in names() else ""](value)
