"""The schema of a recipe: one frozen model for each section of its TOML file, and the rules among them.

Methods bring sections and keys of [method] of their own, see `deepshare.methods`. The same classes serve Python, the
command line's flags and the record in a run folder. Numbers are never made from strings here;
``deepshare.training.recipe.files`` reads files and flags into these.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, create_model, model_validator

from deepshare.methods import base as methods
from deepshare.methods.base import Method, Rate, Settings, Weight, check_gates
from deepshare.methods.base import Positive as Positive
from deepshare.methods.base import Section as Section
from deepshare.training.recipe import allocation as allocations
from deepshare.training.recipe.allocation import Allocation

S = TypeVar("S", bound=Section)
Share = Annotated[float, Field(gt=0, lt=1)]
Size = Positive | Annotated[tuple[Positive, Positive], Field(strict=False)]  # of a square, or height and width

PHASES = ("teacher", "plain", "pilot", "gelu", "switch", "search", "finetune")
RESULT_PHASES = PHASES[2:]
SHARED_PHASES = ("gelu", "switch", "finetune")
RENAMED = {"classes": "num_classes"}  # keys of [model] as older recipes and run folders have them


class Paper(Section):
    """The row of the paper that a recipe is for, with its figures."""

    table: Positive
    row: str
    gates_k: Rate
    accuracy: Rate | None = None
    miou: Rate | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> Self:
        if (self.accuracy is None) == (self.miou is None):
            raise ValueError("give either accuracy or miou")
        return self


class Model(Section):
    """The network, by its name in the zoo."""

    name: str
    num_classes: Positive
    arguments: dict[str, int | float | bool | str] = Field({})
    weights: str | None = None  # a weights file or a run folder that the network starts from
    relu6_to_relu: bool = False  # every ReLU6 becomes a ReLU, so that its gate can be shared too
    piecewise_to_relu: bool = False  # ReLU6, hard-swish, LeakyReLU and their kin are written as ReLUs, exactly
    smooth_to_relu: bool = False  # SiLU, GELU and their kin become ReLUs, Sigmoid a hard sigmoid
    maxpool: Literal["exact", "shared", "avg"] | None = None  # as gates, all of them or within the budget; or averages

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, values: Any) -> Any:
        return with_new_names(values) if isinstance(values, dict) else values


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a [model] under current names; if both names are given, validation refuses the old one."""
    return {new if (new := RENAMED.get(key, key)) not in values else key: value for key, value in values.items()}


class Augmentation(Section):
    """The random changes of a training image; ``crop`` and ``scale`` also change its mask."""

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Weight = 0.0  # the most by which brightness, contrast and saturation change
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    crop: Size | None = None
    scale: tuple[Rate, Rate] | None = Field(None, strict=False)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.crop and self.crop_padding:
            raise ValueError("crop (out of a large image) and crop_padding (a shift of a small one) exclude each other")
        if self.scale and self.scale[0] > self.scale[1]:
            raise ValueError("scale runs from the smaller to the larger factor")
        return self


class Data(Section):
    """The data set, its size of image, and the share of its training images that is cut off for validation."""

    name: str
    image_size: Size
    validation: int | float
    subset: Positive | None = None  # keep this many of the training images
    seed: Annotated[int, Field(ge=0)] | None = None  # of validation images and subset; None: the recipe's
    evaluation: Literal["whole", "sliding"] | None = None  # of test images with masks; None: both in the input's frame
    augmentation: Augmentation = Augmentation()

    @model_validator(mode="after")
    def _validation(self) -> Self:
        if self.validation <= 0 or (isinstance(self.validation, float) and self.validation >= 1):
            raise ValueError("validation is a number of training images (1000) or a share of them (0.02)")
        return self


def _allocate(value: str) -> str:
    if value not in allocations.names() and not value.endswith(".json"):
        known = ", ".join(f'"{name}"' for name in allocations.names())
        raise ValueError(f"expected {known} or a .json file of {{site: count}}")
    return value


def _budget_gates(value: int | str) -> int | str:
    return 0 if value == 0 else check_gates(value)


class Budget(Section):
    """The number of gates, and their spread over the network."""

    gates: Annotated[int | str, AfterValidator(_budget_gates)]  # 0 where polynomials take the place of every ReLU
    allocate: Annotated[str, AfterValidator(_allocate)] = "senet"
    layer_sharing: bool = True
    max_group: Positive | None = None
    patch: Positive = 1  # side of the square patches whose neurons share a gate, too
    per_block: bool = False  # layers share gates within a residual block only
    groups: Literal["consecutive", "stage"] = "consecutive"  # of one shape: those in a row, or all of a stage
    first_site_only: bool = False  # a group weighs what its first site weighs, not the sum of its sites
    leader: Literal["first", "data"] = "first"  # the site that computes the gates of a group; data: allocation.leaders

    @property
    def allocation(self) -> Allocation:
        """The way to divide the budget that `allocate` names."""
        return allocations.find(self.allocate)

    @property
    def of_plan(self) -> dict[str, Any]:
        """The keys that decide which sites share gates."""
        return self.model_dump(
            include={"layer_sharing", "max_group", "per_block", "patch", "first_site_only", "groups"}
        )


class Phase(Section):
    """One stretch of training."""

    epochs: Positive
    batch: Positive
    lr: Rate
    schedule: Literal["linear", "cosine", "poly", "steps", "none"]
    end_lr: Weight | None = None
    milestones: tuple[Share, ...] = Field((), strict=False)  # of the steps schedule, as shares of the phase
    factor: Rate | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # Adam's first beta
    weight_decay: Weight
    clip: Rate | None = None  # no entry of a gradient is larger
    recalibrate: Positive | None = None  # batches on which BatchNorm is estimated anew at the end of each epoch
    distill: Weight | None = None  # None: [distillation] weight, but nothing in plain and teacher

    @model_validator(mode="after")
    def _schedule(self) -> Self:
        falls = self.schedule in ("linear", "cosine", "poly")
        steps = self.schedule == "steps"
        if falls != (self.end_lr is not None):
            raise ValueError(f'schedule "{self.schedule}" ' + ("needs end_lr" if falls else "takes no end_lr"))
        if steps != bool(self.milestones) or steps != (self.factor is not None):
            verb = "needs" if steps else "takes no"
            raise ValueError(f'schedule "{self.schedule}" {verb} milestones and factor')
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones are shares of the phase in rising order")
        return self


class NetworkPhase(Phase):
    """The training of the plain network or of the teacher, which a finished one may stand in for."""

    weights: str | None = None  # a finished network of the same kind: taken, not trained
    model: Model | None = None  # another network than [model]


class Distillation(Section):
    """The loss beside a teacher: ce_weight x cross-entropy + weight x T^2 x KL at the temperature T."""

    temperature: Rate = 4.0
    weight: Weight = 1.0
    ce_weight: Weight = 1.0
    teacher: Literal["gelu", "plain"] = "gelu"  # the network with GELU, [teacher], or with ReLU, [plain]
    after_gelu: Literal["itself", "teacher"] = "itself"  # [switch] and [finetune] learn from what [gelu] ended with


class _Named(Section):
    name: str = ""


class _Started(Section):
    initial: Literal["model", "plain"] = "model"  # the network starts as built, or as the trained plain one


if TYPE_CHECKING:

    class MethodKeys(_Started, _Named):
        """[method]: the name of a method, the options of all of them, and the start."""

    class MethodSections(Section):
        """The sections that methods bring."""

else:
    _classes = {name: methods.get(name) for name in methods.names()}
    # Fields come in the order of the bases from the last to the first.
    MethodKeys = create_model(
        "MethodKeys",
        __base__=(_Started, *dict.fromkeys(kind.options for kind in _classes.values() if kind.options), _Named),
        __module__=__name__,
        name=(Literal[tuple(_classes)], next(iter(_classes))),
    )
    MethodSections = create_model(
        "MethodSections",
        __base__=Section,
        __module__=__name__,
        **{
            name: (kind.section, kind.section()) if kind.always else (kind.section | None, None)
            for name, kind in _classes.items()
            if kind.section
        },
    )


class _Head(Section):
    name: str
    about: str
    seed: Annotated[int, Field(ge=0)] = 0
    paper: Paper | None = None
    model: Model
    data: Data
    budget: Budget | None = None
    method: MethodKeys = MethodKeys()
    distillation: Distillation = Distillation()


class _Phases(Section):
    plain: NetworkPhase | None = None
    teacher: NetworkPhase | None = None
    pilot: Phase | None = None
    gelu: Phase | None = None
    switch: Phase | None = None
    search: Phase | None = None
    finetune: Phase | None = None


class Recipe(_Phases, MethodSections, _Head):
    """Everything that decides a trained network, apart from where it is run."""

    @property
    def method_class(self) -> type[Method]:
        """The class of the method."""
        return methods.get(self.method.name)

    def section(self, kind: type[S]) -> S:
        """The section of a class; its defaults if it is left out."""
        return next((part for _, part in self if isinstance(part, kind)), None) or kind()

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases that run, in their order; the plain network and the teacher only where something needs them."""
        needed = {"teacher": self.needs_teacher, "plain": self.needs_plain}
        present = {name: getattr(self, name) for name in PHASES if needed.get(name, True)}
        return {name: phase for name, phase in present.items() if phase is not None}

    @property
    def result_phases(self) -> dict[str, Phase]:
        """The phases of the result itself, without those of the plain network and of the teacher."""
        return {name: getattr(self, name) for name in RESULT_PHASES if getattr(self, name) is not None}

    @property
    def needs_plain(self) -> bool:
        """True if the trained plain network is the result, its start or its teacher, or the plan is measured on it."""
        plans = self.budget is not None and (self.budget.allocation.needs_plain or self.budget.leader == "data")
        teaches = self.distillation.teacher == "plain" and any(map(self._learns, self._learners))
        return self.is_plain or self.starts_from_plain or plans or teaches

    @property
    def needs_teacher(self) -> bool:
        """True if a phase learns from the GELU network; after the GELU phase its own network may teach."""
        learners = ["plain"] * self.needs_plain + self._learners * (self.distillation.teacher == "gelu")
        return any(map(self._learns, learners))

    @property
    def _learners(self) -> list[str]:
        """The phases whose teacher is another network than the one that is trained."""
        if not self.gelu:
            return ["pilot", "search", "finetune"]
        return ["pilot", "gelu", "switch", "finetune"][: None if self.distillation.after_gelu == "teacher" else 2]

    def _learns(self, phase: str) -> bool:
        return getattr(self, phase) is not None and self.distill_weight(phase) > 0

    def distill_weight(self, phase: str) -> float:
        """Return the weight of distillation in a phase; 0 is no teacher at all."""
        own: Phase = getattr(self, phase)
        if own.distill is not None:
            return own.distill
        return self.distillation.weight if phase in RESULT_PHASES else 0.0

    def model_of(self, role: str) -> Model:
        """Return the network of a role; the teacher and the plain network may be others than the result."""
        phase = {"teacher": self.teacher, "plain": self.plain}.get(role)
        return (phase.model if phase else None) or self.model

    @property
    def starts_from_plain(self) -> bool:
        """True if the network starts as the trained plain one."""
        return self.method.initial == "plain"

    @property
    def starts_trained(self) -> bool:
        """True if the network starts from trained weights."""
        return self.model.weights is not None or self.starts_from_plain

    @property
    def is_plain(self) -> bool:
        """True if the result is the plain network."""
        return self.method_class.kind == "plain"

    @property
    def shares_gates(self) -> bool:
        """True if there is a plan."""
        return self.method_class.kind == "shared"

    @property
    def shares_layers(self) -> bool:
        """True if layers may share gates."""
        return self.budget is not None and self.budget.layer_sharing

    @property
    def resolved(self) -> dict[str, object]:
        """The options that a recipe may leave open, with what the method makes of them; None where it has none."""
        fields = type(self.method).model_fields.items()
        opened = {key: None for key, field in fields if field.default is None}
        return {f"method.{key}": value for key, value in (opened | self.method_class.resolved(self)).items()}

    @model_validator(mode="after")
    def _validate(self) -> Self:
        if problem := next(filter(None, self._problems()), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str | None]:
        yield self._method_problem()
        yield self._phase_problem()
        yield self._teacher_problem()
        yield from (part.problem(self) for _, part in self if isinstance(part, Settings))
        yield self._pilot_problem()
        yield self._group_problem()

    def _method_problem(self) -> str | None:
        name, kind = self.method.name, self.method_class
        shared = any(getattr(self, phase) for phase in SHARED_PHASES)
        if self.search and "search" not in kind.phases:
            searching = methods.names(lambda method: "search" in method.phases)
            return f'method "{name}" has no [search]: that is for {", ".join(searching)}'
        if kind.kind == "plain":
            if self.budget or shared:
                return f'method "{name}" is the plain network: no [budget], no {_listed(SHARED_PHASES)}'
            if self.plain and self.plain.weights:
                return f'method "{name}" trains the plain network: give model.weights to start from, not plain.weights'
            return None if self.plain else f'method "{name}" needs [plain]'
        if self.budget is None:
            return f'method "{name}" needs [budget]'
        if self.budget.gates == 0 and not kind.without_gates:
            possible = ", ".join(methods.names(lambda method: method.without_gates))
            return f'budget.gates = 0 leaves polynomials alone: it is for {possible}, and method "{name}" has none'
        if not self.shares_gates:
            return self._gated_problem() or kind.problem(self)
        return kind.problem(self) if shared else f"at least one of {_listed(kind.phases)} is needed"

    def _gated_problem(self) -> str | None:
        name, kind = self.method.name, self.method_class
        if idle := next(self._idle(), None):
            return f'method "{name}" has no use for {idle}: take it away'
        if self.gelu or self.switch:
            return f'method "{name}" has no soft gates: no [gelu], no [switch]'
        if not all(getattr(self, phase) for phase in kind.phases):
            return f'method "{name}" needs {_listed(kind.phases, " and ")}'
        alike = self.distillation.teacher == "plain" and not (self.plain and self.plain.model)
        if kind.compares_with_start and not (alike and all(map(self._learns, kind.phases))):
            cure = 'set distillation.teacher = "plain", and no weight of distillation to 0'
            return f'method "{name}" compares itself with the network that it starts from: {cure}'
        return None

    def _idle(self) -> Iterator[str]:
        """The keys and sections that are for other methods, and would do nothing."""
        kind = self.method_class
        said = self.budget.model_dump(exclude={"gates", "allocate"}, exclude_defaults=True) if self.budget else {}
        yield from (f"budget.{key}" for key in said)
        if self.budget and self.budget.allocate.endswith(".json") and not kind.divides_budget:
            yield "budget.allocate"
        others = methods.names(lambda method: method.section is not None and not method.always and method is not kind)
        yield from (f"[{name}]" for name in sorted(others) if getattr(self, name))

    def _phase_problem(self) -> str | None:
        if self.switch and not self.gelu:
            return "[switch] needs [gelu]: without soft gates there is nothing to switch"
        if self.gelu and not self.switch:
            return "[gelu] needs [switch]: the gates would stay soft"
        trained = self.plain or self.model.weights
        if self.starts_from_plain and not trained:
            return 'method.initial = "plain" needs [plain] or model.weights'
        if self.starts_from_plain and self.plain and self.plain.model:
            return 'method.initial = "plain" starts from the same network: take plain.model away'
        if self.distillation.teacher == "plain" and self.needs_plain and not trained:
            return 'distillation.teacher = "plain" needs [plain] or model.weights'
        if self.budget and self.budget.allocation.needs_plain and not trained:
            named = f'budget.allocate = "{self.budget.allocate}"'
            return f"{named} starts from a trained network: it needs [plain] or model.weights"
        if self.budget and self.budget.leader == "data" and not trained:
            return 'budget.leader = "data" looks at a trained network: it needs [plain] or model.weights'
        return None

    def _teacher_problem(self) -> str | None:
        if self.teacher and self.teacher.distill:
            return "[teacher] learns from the labels alone: it takes no distill"
        if self.needs_teacher and not self.teacher:
            return "distillation needs [teacher], the GELU network; without it set distillation.weight = 0"
        if self.distillation.after_gelu == "teacher" and not self.gelu:
            return 'distillation.after_gelu = "teacher" needs [gelu]: without it the teacher is that of all phases'
        return None

    def _pilot_problem(self) -> str | None:
        allocation = self.budget.allocation if self.budget else None
        if self.pilot and not (allocation and allocation.needs_pilot):
            measured = " or ".join(f'"{name}"' for name in allocations.names(lambda kind: kind.needs_pilot))
            return f"[pilot] is for budget.allocate = {measured} alone"
        return allocation.problem(self) if allocation else None

    def _group_problem(self) -> str | None:
        budget = self.budget
        alone = budget is None or not self.shares_gates or not budget.layer_sharing or budget.max_group == 1
        if budget and budget.per_block and alone:
            return "budget.per_block is for layers that share gates, and here none do: take it away"
        if budget is None or budget.leader == "first":
            return None
        if alone:
            return 'budget.leader = "data" chooses among the layers that share gates, and here none do'
        if self.plain and self.plain.model:
            return 'budget.leader = "data" looks at the same network with its ReLUs: take plain.model away'
        if budget.first_site_only:
            return 'budget.leader = "data" may make a first site linear: take budget.first_site_only away'
        return None


def _listed(phases: tuple[str, ...], between: str = ", ") -> str:
    return between.join(f"[{phase}]" for phase in phases)
