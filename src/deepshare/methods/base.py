"""The interface of a method (its traits, its settings in a recipe, its part in the training loop), and the registry."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor, distributed, nn

from deepshare.errors import RecipeError
from deepshare.sharing.plan import Plan

C = TypeVar("C")
T = TypeVar("T", bound=nn.Module)
S = TypeVar("S", bound="Section")
Images = Callable[[int], Tensor]  # returns that many prepared training images, or all if there are fewer

Positive = Annotated[int, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_SHARE = re.compile(r"\d+(\.\d+)?%")


def check_gates(value: int | str) -> int | str:
    """Check a number of gates or a share of the ReLUs."""
    if isinstance(value, str) and not (_SHARE.fullmatch(value) and 0 < float(value[:-1]) <= 100):
        raise ValueError('expected a number of gates (6000) or a share of the ReLUs ("1.25%")')
    if isinstance(value, int) and value <= 0:
        raise ValueError("expected a number of gates above 0")
    return value


Gates = Annotated[int | str, AfterValidator(check_gates)]


class Section(BaseModel):
    """A section of a recipe: no unknown keys, no changes later, no guessed types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Settings(Section):
    """The settings of a method: a section of its own, or keys of [method]."""

    def problem(self, recipe: "RecipeView") -> str | None:
        """Return a conflict with the rest of a recipe, whatever its method, in one sentence; None if there is none."""
        return None


class PhaseView(Protocol):
    """The part of a phase that methods look at."""

    @property
    def epochs(self) -> int:
        """Epochs, at most."""

    @property
    def batch(self) -> int:
        """Images of one step, over all processes."""

    @property
    def weight_decay(self) -> float:
        """Of the optimiser."""


class RecipeView(Protocol):
    """The part of a recipe that methods look at."""

    @property
    def method_class(self) -> "type[Method]":
        """The class of its method."""

    @property
    def result_phases(self) -> Mapping[str, PhaseView]:
        """The phases of the result itself, without those of the plain network and of the teacher."""

    @property
    def starts_from_plain(self) -> bool:
        """True if the network starts as the trained plain one."""

    @property
    def starts_trained(self) -> bool:
        """True if the network starts from trained weights."""

    @property
    def shares_layers(self) -> bool:
        """True if layers may share gates."""

    def section(self, kind: type[S], /) -> S:
        """The section of a class; its defaults if it is left out."""


@dataclass(frozen=True, kw_only=True)
class MethodContext:
    """The network and the budget that a method is made for.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
        seed: Gives a seed for a purpose, such as "gates".
        plan: The plan of a method that shares gates.
        weights: The share of the budget for each site, by name; None is the same share of neurons everywhere.
        given: Whether the user gave the network.
        dry: Whether nothing will be trained.
    """

    input_size: Sequence[int]
    gates: int
    seed: Callable[[str], int]
    plan: Plan | None = None
    weights: Mapping[str, float] | None = None
    given: bool = False
    dry: bool = False


class Method:
    """The plain network: nothing is converted, nothing is added to the loss, every phase runs to its end.

    Attributes:
        name: Set by `register`.
        kind: The network that it leaves: the plain one, one whose gates are shared by a plan, or one with gates of
            any other form.
        phases: The phases that train it, in order. Where gates are shared at least one of them is needed, and all of
            them anywhere else.
        section: Settings with a section of their own, called as the method is.
        options: Settings that are keys of [method].
        always: Whether a recipe that leaves the section out has its defaults: something else reads them, too.
        divides_budget: Whether sites have budgets of their own, as `budget.allocate` says.
        replicates: Whether channels take over the gates of others.
        without_gates: Whether a budget of 0 is possible: polynomials take the place of every ReLU.
        compares_with_start: Whether it is compared, site by site, with the network that it starts from, its teacher.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[Literal["plain", "shared", "gated"]] = "gated"
    phases: ClassVar[tuple[str, ...]] = ("finetune",)
    section: ClassVar[type[Settings] | None] = None
    options: ClassVar[type[Settings] | None] = None
    always: ClassVar[bool] = False
    divides_budget: ClassVar[bool] = False
    compares_with_start: ClassVar[bool] = False
    without_gates: ClassVar[bool] = False
    replicates: bool = False

    @classmethod
    def problem(cls, recipe: RecipeView) -> str | None:
        """Return any other conflict in a recipe for this method, in one sentence; None if there is none."""
        return None

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Make the method as a recipe describes it."""
        return cls()

    @classmethod
    def resolved(cls, recipe: RecipeView) -> dict[str, object]:
        """The values of those options that a recipe leaves to the method."""
        return {}

    @classmethod
    def has_replicates(cls, recipe: RecipeView) -> bool:
        """Return True if channels of a recipe's network take over the gates of others."""
        return cls.replicates

    @classmethod
    def plan_options(cls, recipe: RecipeView) -> dict[str, Any]:
        """The arguments of `plan` that options decide, where gates are shared."""
        return {}

    def convert(self, model: nn.Module) -> nn.Module:
        """Make the network that is trained; the given one is not touched."""
        return model

    def adopt(self, model: nn.Module) -> nn.Module:
        """Make the network that is trained from one that has been converted before; the given one is not touched."""
        return model

    def finished(self, model: nn.Module) -> nn.Module:
        """Make a plain network into one that the weights of a finished run fit."""
        network = self.convert(model)
        self.build_phase_modules(network, "finetune")
        return network

    def build_phase_modules(self, model: nn.Module, phase: str) -> None:
        """Give a converted network the modules that it has in a phase, in place; their values come from a file."""

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Take the network from the end of one phase to the start of the next, in place."""

    def wrap_teacher(self, model: nn.Module, teacher: nn.Module, phase: str) -> nn.Module:
        """Make the teacher of a phase into one that the network can be compared with at every site."""
        return teacher

    def optimiser(
        self,
        model: nn.Module,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        kind: Literal["sgd", "adam"] = "sgd",
    ) -> torch.optim.Optimizer:
        """Make the optimiser of a phase, over every parameter that the method trains; momentum is Adam's first beta."""
        groups = self.parameter_groups(model)
        if kind == "adam":
            return torch.optim.Adam(groups, lr=lr, betas=(momentum, 0.999), weight_decay=weight_decay)
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The parameters that the method trains, as an optimiser takes them."""
        return [{"params": list(model.parameters())}]

    def on_epoch_start(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Prepare the network for an epoch, counted from 0; called before every epoch, also after a resume."""

    def penalty(self, model: nn.Module) -> Tensor | None:
        """The term that is added to the loss of every step."""
        return None

    def on_epoch_end(self, model: nn.Module, phase: str, epoch: int) -> bool:
        """Look at the network after an epoch; True ends the phase."""
        return False

    def measures(self, model: nn.Module) -> dict[str, float]:
        """The figures that the method adds to the record of every epoch."""
        return {}

    def state(self) -> dict[str, float]:
        """The values that the method needs to be resumed, apart from the network's weights."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from what `state` gave."""


M = TypeVar("M", bound=type[Method])
LAST = 100


class Registry(Generic[C]):
    """Classes by name, each registered by a module of one package; these are imported once a name is looked up.

    Args:
        package: The package.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._registered: dict[str, tuple[int, type[C]]] = {}

    def add(self, name: str, known: type[C], order: int) -> None:
        """Make a class known by a name."""
        self._registered[name] = order, known

    def names(self, where: Callable[[type[C]], bool] | None = None) -> tuple[str, ...]:
        """All names in their order, the empty one aside, or those whose classes fulfil a condition."""
        for module in iter_modules(import_module(self._package).__path__):
            import_module(f"{self._package}.{module.name}")
        ordered = sorted(filter(None, self._registered), key=lambda name: (self._registered[name][0], name))
        return tuple(name for name in ordered if where is None or where(self._registered[name][1]))

    def __getitem__(self, name: str) -> type[C]:
        """The class of a name."""
        return self._registered[name][1]


_METHODS: Registry[Method] = Registry("deepshare.methods")


def register(name: str, *, order: int = LAST) -> Callable[[M], M]:
    """Make a method known by a name.

    Args:
        name: Its name in recipes, and that of its section if it has one.
        order: Its place wherever methods are listed; those with the same place are sorted by name. The first is the
            method of recipes that name none.
    """

    def known(method: M) -> M:
        method.name = name
        _METHODS.add(name, method, order)
        return method

    return known


def names(where: Callable[[type[Method]], bool] | None = None) -> tuple[str, ...]:
    """The names of all methods, as recipes have them, or of those that fulfil a condition."""
    return _METHODS.names(where)


def get(name: str) -> type[Method]:
    """The class of a method by its name.

    Raises:
        RecipeError: No method has that name.

    >>> get("snl").phases
    ('search', 'finetune')
    """
    if name not in names():
        raise RecipeError(f'no method is called "{name}": give one of {", ".join(sorted(names()))}')
    return _METHODS[name]


def over_processes(values: Tensor) -> Tensor:
    """The mean of some values over all processes that train together."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


def swap(model: nn.Module, kind: type[T], make: Callable[[T], nn.Module]) -> None:
    """Put new modules in the place of all modules of a kind, on their device and in their mode."""
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, kind):
            if module not in made:
                device = next((value.device for value in module.state_dict().values()), torch.device("cpu"))
                made[module] = make(module).to(device).train(module.training)
            model.set_submodule(path, made[module])
