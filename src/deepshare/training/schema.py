"""What a recipe may say: one frozen model per section of its TOML file.

The same classes serve Python, the command line's flags and the record in a run folder. Numbers are never made from
strings here; ``deepshare.training.recipe`` reads files and flags into these.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
PHASES = ("teacher", "plain", "gelu", "switch", "finetune")
SHARED_PHASES = ("gelu", "switch", "finetune")

_SHARE = re.compile(r"\d+(\.\d+)?%")


def _gates(value: int | str) -> int | str:
    if isinstance(value, str) and not (_SHARE.fullmatch(value) and 0 < float(value[:-1]) <= 100):
        raise ValueError('expected a number of gates (6000) or a share of the ReLUs ("1.25%")')
    if isinstance(value, int) and value <= 0:
        raise ValueError("expected a number of gates above 0")
    return value


def _allocate(value: str) -> str:
    if value not in ("senet", "snl", "uniform") and not value.endswith(".json"):
        raise ValueError('expected "senet", "snl", "uniform" or a .json file of {site: count}')
    return value


Gates = Annotated[int | str, AfterValidator(_gates)]


class Section(BaseModel):
    """The rules of every section: nothing unknown, nothing changed later, no type guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Paper(Section):
    """The row of the paper that a recipe is for, with what the paper reports."""

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
    classes: Positive
    arguments: dict[str, int | float | bool | str] = {}
    weights: str | None = None  # a weights file or a run folder that the network starts from


class Augmentation(Section):
    """What is done to a training image, by chance; ``crop`` and ``scale`` also to its mask."""

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Weight = 0.0  # the most by which brightness, contrast and saturation change
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    crop: Positive | None = None
    scale: tuple[Rate, Rate] | None = Field(None, strict=False)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.crop and self.crop_padding:
            raise ValueError("crop (out of a large image) and crop_padding (a shift of a small one) exclude each other")
        if self.scale and self.scale[0] > self.scale[1]:
            raise ValueError("scale runs from the smaller to the larger factor")
        return self


class Data(Section):
    """The data set, its size of image, and what is cut from its training images for validation."""

    name: str
    image_size: Positive
    validation: int | float
    subset: Positive | None = None  # only so many of the training images
    augmentation: Augmentation = Augmentation()

    @model_validator(mode="after")
    def _validation(self) -> Self:
        if self.validation <= 0 or (isinstance(self.validation, float) and self.validation >= 1):
            raise ValueError("validation is a number of training images (1000) or a share of them (0.02)")
        return self


class Budget(Section):
    """How many gates, and how they are spread over the network."""

    gates: Gates
    allocate: Annotated[str, AfterValidator(_allocate)] = "senet"
    layer_sharing: bool = True
    max_group: Positive | None = None
    first_site_only: bool = False  # a group weighs what its first site weighs, not the sum of its sites


class Method(Section):
    """What becomes of the ReLUs."""

    name: Literal["deepshare", "relu"] = "deepshare"
    affine: bool = True
    start: Literal["identity", "uniform"] = "uniform"
    sharpness: Rate = 1.0
    mapping: Literal["round-robin", "contiguous"] = "round-robin"
    replicates: bool = True  # False trims the network to its prototype channels
    initial: Literal["model", "plain"] = "model"  # the shared network starts as built, or as the trained plain one


class Phase(Section):
    """One stretch of SGD."""

    epochs: Positive
    batch: Positive
    lr: Rate
    schedule: Literal["linear", "cosine", "poly", "steps", "none"]
    end_lr: Weight | None = None
    milestones: tuple[Share, ...] = Field((), strict=False)  # of the steps schedule, as shares of the phase
    factor: Rate | None = None
    momentum: Weight = 0.9
    weight_decay: Weight
    distill: Weight | None = None  # None: [distillation] weight in the shared phases, nothing in plain and teacher

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


class Distillation(Section):
    """The loss: ce_weight x cross-entropy + weight x T^2 x KL at the temperature T."""

    temperature: Rate = 4.0
    weight: Weight = 1.0
    ce_weight: Weight = 1.0


class SNL(Section):
    """Selective network linearisation, run to learn how many gates each site wants."""

    gates: Gates | None = None  # the count at which it stops; None: the budget
    lasso: Rate = 1e-5  # weight of the sum of the masks in the loss
    growth: Annotated[float, Field(gt=1)] = 1.1
    grow_from: Annotated[int, Field(ge=0)] = 5  # the epoch, from 0, after which the lasso may first grow
    threshold: Rate = 1e-2
    lr: Rate = 1e-3
    batch: Positive = 128
    max_epochs: Positive = 2000


class Recipe(Section):
    """Everything that decides a trained network, apart from where it is run."""

    name: str
    about: str
    seed: Annotated[int, Field(ge=0)] = 0
    paper: Paper | None = None
    model: Model
    data: Data
    budget: Budget | None = None
    method: Method = Method()
    distillation: Distillation = Distillation()
    snl: SNL = SNL()
    plain: NetworkPhase | None = None
    teacher: NetworkPhase | None = None
    gelu: Phase | None = None
    switch: Phase | None = None
    finetune: Phase | None = None

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases that run, in their order; the plain network and the teacher only where something needs them."""
        needed = {"teacher": self.needs_teacher, "plain": self.needs_plain}
        present = {name: getattr(self, name) for name in PHASES if needed.get(name, True)}
        return {name: phase for name, phase in present.items() if phase is not None}

    @property
    def needs_plain(self) -> bool:
        """Whether the trained plain network is the result, the start or what SNL works on."""
        snl = self.budget is not None and self.budget.allocate == "snl"
        return self.method.name == "relu" or self.method.initial == "plain" or snl

    @property
    def needs_teacher(self) -> bool:
        """Whether a phase learns from the GELU network; after the GELU phase that phase's own network teaches."""
        learners = ["plain"] * self.needs_plain + ["gelu" if self.gelu else "finetune"]
        return any(getattr(self, name) is not None and self.distill_weight(name) > 0 for name in learners)

    def distill_weight(self, phase: str) -> float:
        """Return the weight of distillation in a phase; 0 is no teacher at all."""
        own: Phase = getattr(self, phase)
        if own.distill is not None:
            return own.distill
        return self.distillation.weight if phase in SHARED_PHASES else 0.0

    @model_validator(mode="after")
    def _together(self) -> Self:
        problem = self._method_problem() or self._phase_problem() or self._teacher_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _method_problem(self) -> str | None:
        shared = [name for name in SHARED_PHASES if getattr(self, name) is not None]
        sections = ", ".join(f"[{name}]" for name in SHARED_PHASES)
        if self.method.name == "relu":
            if self.budget or shared:
                return f'method "relu" is the plain network: no [budget], no {sections}'
            return None if self.plain else 'method "relu" needs [plain]'
        if self.budget is None:
            return f'method "{self.method.name}" needs [budget]'
        if not shared:
            return f"at least one of {sections} is needed"
        if not self.method.replicates and (self.budget.layer_sharing or self.method.affine):
            return "method.replicates = false needs budget.layer_sharing = false and method.affine = false"
        return None

    def _phase_problem(self) -> str | None:
        if self.switch and not self.gelu:
            return "[switch] needs [gelu]: without soft gates there is nothing to switch"
        if self.gelu and not self.switch:
            return "[gelu] needs [switch]: the gates would stay soft"
        trained = self.plain or self.model.weights
        if self.method.initial == "plain" and not trained:
            return 'method.initial = "plain" needs [plain] or model.weights'
        if self.budget and self.budget.allocate == "snl" and not trained:
            return 'budget.allocate = "snl" starts from a trained network: it needs [plain] or model.weights'
        return None

    def _teacher_problem(self) -> str | None:
        if self.teacher and self.teacher.distill:
            return "[teacher] learns from the labels alone: it takes no distill"
        if self.needs_teacher and not self.teacher:
            return "distillation needs [teacher], the GELU network; without it set distillation.weight = 0"
        return None
